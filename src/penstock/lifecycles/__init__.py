"""State machines kept in the database: versioned definitions, audited instances, moved one by one or in bulk."""

from penstock.graphs.flags import StateFlag, TransitionFlag
from penstock.graphs.model import StateAction, Timeout
from penstock.lifecycles.guards import Allow, Deny, Guard, GuardContext
from penstock.lifecycles.model import Delivery, Instance, LogEntry, Outcome, Start, Trigger
from penstock.lifecycles.service import Lifecycles
from penstock.lifecycles.states import InstanceFlag, LogFlag
from penstock.lifecycles.step import LifecycleStep

__all__ = [
    "Allow",
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
    "StateAction",
    "StateFlag",
    "Timeout",
    "TransitionFlag",
    "Trigger",
]
