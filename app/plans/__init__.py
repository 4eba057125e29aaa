"""Plans kept: their documents, digests and rows. Answering a request for one is in `app.planning`."""
