"""The database itself: engine, migrations, tables and who sees which rows.

Queries of a resource are in that resource's folder.
"""
