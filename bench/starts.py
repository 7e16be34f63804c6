"""How long it takes until anything happens: a command, an import, and Python itself to compare with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["start"]

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import penstock"],
    "engine": [sys.executable, "-c", "from penstock import Penstock"],
    "help": [str(Path(sys.executable).parent / "penstock"), "--help"],
}


def start(*, file: str, rows: int, command: str) -> dict[str, Any]:
    """Seconds for one start."""
    began = time.perf_counter()
    subprocess.run(COMMANDS[command], stdout=subprocess.DEVNULL, check=True)
    return {"seconds": time.perf_counter() - began, "rows": rows}
