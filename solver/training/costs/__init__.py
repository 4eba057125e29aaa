"""What training candidates cost: tables of stages, state, host and communication. Which candidates there are is in `space`."""
