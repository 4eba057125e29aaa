"""Going from one training plan to another: what every device must receive, what it has already, and how long that takes."""

from meshwright.solver.switching.pieces import SwitchTraffic
from meshwright.solver.switching.switch import Switch, switch_bytes

__all__ = ["Switch", "SwitchTraffic", "switch_bytes"]
