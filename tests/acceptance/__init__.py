"""What users do: commands, documents, the published interface, the manuals."""
