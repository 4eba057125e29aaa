"""The parts that launchers are made of: flags, written and read by one table; commands written; files and starts read."""
