"""Readers that turn what users have (config.json files, native graphs) into model graphs."""
