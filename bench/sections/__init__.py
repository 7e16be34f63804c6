"""What is measured, section by section: each asks the lab for samples and makes a table of them."""

from bench.sections.lifecycles import lifecycles
from bench.sections.main import main
from bench.sections.peers import peers
from bench.sections.queries import queries
from bench.sections.scaling import scaling
from bench.sections.shapes import batch, failing, outputs, retry, sync
from bench.sections.signals import signals
from bench.sections.sleeping import sleeping
from bench.sections.startup import startup
from bench.sections.targets import bulk, streaming, throttled
from bench.sections.upserts import upserts

__all__ = ["SECTIONS"]

# In the order of a run: what matters most comes first.
SECTIONS = {
    "main": main,
    "peers": peers,
    "scaling": scaling,
    "failing": failing,
    "outputs": outputs,
    "sleeping": sleeping,
    "sync": sync,
    "batch": batch,
    "signals": signals,
    "retry": retry,
    "queries": queries,
    "lifecycles": lifecycles,
    "startup": startup,
    "throttled": throttled,
    "streaming": streaming,
    "bulk": bulk,
    "upserts": upserts,
}
