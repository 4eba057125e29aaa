"""The fleet: models and clusters registered under names, and the questions that were asked of them."""
