"""The process that takes jobs from the queue and solves them. What a job is stands in `app.jobs`."""
