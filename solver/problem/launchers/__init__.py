"""What each launcher and serving engine can express and how it runs, one file each; the table is `launchers.table`."""
