"""The independent checker of plans: rules of the request that a plan breaks, and figures that do not follow from one another.

It reads the same records and facts of launchers as the search and shares no computation with it: what it compares, it computes
anew and simply.
"""

from meshwright.solver.verify.check import check
from meshwright.solver.verify.violation import Rule, SpaceRules, Subject, Violation

__all__ = ["Rule", "SpaceRules", "Subject", "Violation", "check"]
