"""Going from one training plan to another: what every device must receive, what it has already, and how long that takes."""

from solver.switching.switch import Answered, Switch, switch_bytes

__all__ = ["Answered", "Switch", "switch_bytes"]
