"""From a solved search to the plan that is handed out, and searches over numbers of devices for its frontier."""
