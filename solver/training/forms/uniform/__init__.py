"""One layout for all stages and replicas: on which devices its ranks lie, and reading a given one."""
