"""The independent checker: does a plan keep every rule of its request, and do its figures follow from one another?

It reads the same records as the search and shares no code with it: what it compares, it computes anew and simply.
"""

from solver.verify.check import check
from solver.verify.violation import Rule, Violation

__all__ = ["Rule", "Violation", "check"]
