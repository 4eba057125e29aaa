"""Pages of the service for a browser: plans, one plan, a request builder, a job. HTML and script are in templates."""
