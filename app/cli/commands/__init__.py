"""The commands of the command line, one command a file. The pages that they print are in `app.cli.pages`."""
