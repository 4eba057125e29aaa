"""What stands between strangers and the service: bodies, problems, lists, keys, tokens, rates, audit, metrics."""
