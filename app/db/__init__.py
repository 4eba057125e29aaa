"""The plan store: engine, tables and repositories. All SQL of Meshwright is here and in ``migrations/``."""
