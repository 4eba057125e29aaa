"""The database: engine, schema, and who sees which rows; the queries of one resource are one file."""
