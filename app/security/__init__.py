"""Who asks and what they may do: keys, tokens, rates and the audit log. Endpoints of keys are in `app.rest`."""
