"""Steps of serving engines: operators, attention, experts and memory on the ranks of a stage. Queues are in `queueing`."""
