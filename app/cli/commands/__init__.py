"""What each command of the command line does, one command a file. What they print is in `app.cli.pages`."""
