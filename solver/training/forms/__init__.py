"""Forms of a training plan, one folder each, one table of them, and the certificate of two searches together."""
