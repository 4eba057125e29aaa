"""Plans locked in a file and compared in continuous integration, and reports for other tools."""
