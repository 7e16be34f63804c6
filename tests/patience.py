"""How long a test waits for what must happen. It only ends a hang: a machine may be as slow as it likes."""

from __future__ import annotations

__all__ = ["HANG_S", "UNHURRIED"]

HANG_S = 300.0

# For processes with a worker: none loses its lease, or is taken for stuck, because the machine is slow. A worker that
# is killed is succeeded all the same, for others on its host see that it is gone.
UNHURRIED = {"PENSTOCK_LEASE_S": "3600", "PENSTOCK_STALL_S": "3600"}
