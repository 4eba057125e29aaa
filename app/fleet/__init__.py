"""The fleet: models and clusters registered under names. Questions asked of them are in `app.questions`."""
