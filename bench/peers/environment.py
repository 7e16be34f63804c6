"""The Python of the peers: build/bench-env, made on first use and again when its requirements have changed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["peers_python"]

REQUIREMENTS = Path(__file__).parents[1] / "requirements-peers.txt"
FOLDER = Path(__file__).parents[2] / "build" / "bench-env"


def peers_python() -> str:
    """The interpreter of the peers; the same one as ours, with other packages."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / ".installed"
    wanted = f"{sys.version}\n{REQUIREMENTS.read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(FOLDER, clear=True, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the environment of the peers cannot be made:\n{done.stderr}")
        stamp.write_text(wanted)
    return str(python)
