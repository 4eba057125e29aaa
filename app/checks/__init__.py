"""Reports of checks kept in the database, and the schemas of their endpoints. Making a check is in `app.regression`."""
