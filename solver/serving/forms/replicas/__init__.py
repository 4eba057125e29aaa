"""Equal replicas that do both phases. Two pools are in `pools`, several kinds in `kinds`."""
