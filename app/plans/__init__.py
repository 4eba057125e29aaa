"""Plans as a resource: their documents, digests, the service that makes them, and the REST endpoints."""
