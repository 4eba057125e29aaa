"""The pages that commands print for a person, 80 columns wide. Words and bars that other rooms print too are in `app.base`."""
