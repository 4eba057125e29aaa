"""Answering requests for plans: from the store, or with a job. Stored plans are in `app.plans`, the solver is below."""
