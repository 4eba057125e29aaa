"""Forms of a training plan, one folder each, and the certificate of two searches together."""
