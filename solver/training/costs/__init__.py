"""The costs of training candidates: tables of stages, state, host and communication. The candidates are in `space`."""
