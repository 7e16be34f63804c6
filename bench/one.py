"""One measurement in a process of its own: `python -m bench.one MODULE:FUNCTION ARGUMENTS` prints one line of JSON.

The function gets the arguments, checks its own results, and returns numbers; the peak of memory is added here.
"""

from __future__ import annotations

import json
import resource
import sys
from importlib import import_module
from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Measure once."""
    entry, arguments = sys.argv[1], json.loads(sys.argv[2])
    module, _, name = entry.partition(":")
    found = getattr(import_module(module), name)(**arguments)
    print(json.dumps({**found, "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    """The memory of the largest process that took part, in MB."""
    # ru_maxrss of our own would count what our parent had at the time it started us.
    status = Path("/proc/self/status").read_text()
    own_kib = int(status.partition("VmHWM:")[2].split()[0])
    return max(own_kib, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024 / 1e6


if __name__ == "__main__":
    main()
