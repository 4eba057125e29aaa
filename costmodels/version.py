"""Version of the cost models: raised with every change that can change a predicted figure. It enters every plan's digest."""

COST_MODEL_VERSION = "21"
