"""The work of users: commands, documents, the published interface, the manuals."""
