"""The command line: its options and its entry points. What a command does is in `app.cli.commands`."""
