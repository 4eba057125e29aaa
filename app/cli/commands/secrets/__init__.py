"""Commands on the secrets of a service: keys of callers, and what signs its webhooks."""
