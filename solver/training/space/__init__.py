"""The training candidates: restrictions, launchers, schedules, places of state. Costs are in `costs`."""
