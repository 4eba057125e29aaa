"""Statements of rows: their columns, their words by the mapping of the table, and assumptions of the rest."""
