"""State machines kept in the database: versioned definitions, audited instances, moved one by one or in bulk."""

from penstock.graphs.flags import StateFlag, TransitionFlag
from penstock.graphs.model import Timeout
from penstock.lifecycles.delivering import Delivery
from penstock.lifecycles.guards import Deny, Guard, GuardContext
from penstock.lifecycles.model import Instance, LogEntry, Outcome, Start, Trigger
from penstock.lifecycles.service import Lifecycles
from penstock.lifecycles.states import InstanceFlag, LogFlag
from penstock.lifecycles.step import LifecycleStep

__all__ = [
    "Delivery",
    "Deny",
    "Guard",
    "GuardContext",
    "Instance",
    "InstanceFlag",
    "LifecycleStep",
    "Lifecycles",
    "LogEntry",
    "LogFlag",
    "Outcome",
    "Start",
    "StateFlag",
    "Timeout",
    "TransitionFlag",
    "Trigger",
]
