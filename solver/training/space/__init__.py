"""Which training candidates exist: restrictions, launchers, schedules, places of state. Costs are in `costs`."""
