"""The parts that tests of several levels use: a running service, the command line, requests."""
