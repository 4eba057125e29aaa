"""Going from one training plan to another: what every device must receive, what it has already, and how long that takes."""

from solver.switching.moves import Traffic
from solver.switching.switch import Switch, switch_bytes

__all__ = ["Switch", "Traffic", "switch_bytes"]
