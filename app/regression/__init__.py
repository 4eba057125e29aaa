"""Plans locked in a file and compared in continuous integration: ``check`` notices when a change makes a plan worse."""
