"""Pages of the service for a browser: plans, one plan, a request builder, a job. No script; their HTML is in templates."""
