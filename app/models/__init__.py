"""Readers that turn what users have into model graphs. Reading the file itself is in `app.base`."""
