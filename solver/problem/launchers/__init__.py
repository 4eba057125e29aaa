"""Facts of launchers and serving engines: the plans that each can express; `trainers` and `servers` have them all."""
