"""Version of the search: raised with every change that can change a plan, so that stored plans are found only if still true."""

SOLVER_VERSION = "28"
