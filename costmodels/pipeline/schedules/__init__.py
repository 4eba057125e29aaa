"""The pipeline schedules: a file each with all its traits, and the table that lists them.

To add one: a member of `costmodels.pipeline.program.Schedule`, a file here, its line in the table. All else is derived from its
traits, and the checker reads what it needs from the event program.
"""
