"""One module or room at a time: nothing is started, no database, no socket."""
