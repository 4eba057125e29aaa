"""Plans locked in a file and compared in continuous integration. Stored reports are in `app.store`."""
