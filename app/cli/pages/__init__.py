"""The pages that commands print for a person, 80 columns wide. The words and bars that other rooms print too are in
`app.text`."""
