"""The flags of launchers, each declared once: exporters write commands by these tables, and readers read commands by them."""
