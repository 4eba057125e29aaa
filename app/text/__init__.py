"""Words and figures for people, in any output. Whole pages are in `app.cli.pages`."""
