"""Pyright from npm, of one version; it is installed into a cache folder when it is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import servers

__all__ = ["diagnostics"]

VERSION = "1.1.414"
ROOT = Path(__file__).parents[2]


def diagnostics() -> list[dict[str, Any]]:
    """What pyright says of the files that pyproject.toml names, seen with the packages of this Python."""
    command = ["node", str(_installed()), "--project", str(ROOT), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 0, done.stdout
    found: list[dict[str, Any]] = report["generalDiagnostics"]
    return found


def _installed() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    folder = cache / f"pyright-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with servers.locked(cache / "pyright.lock"):
        if not folder.exists():
            servers.install("nodejs", "node")
            servers.install("npm", "npm")
            with tempfile.TemporaryDirectory(dir=cache) as made:
                quietly = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
                command = ["npm", "install", *quietly, "--prefix", made, f"pyright@{VERSION}"]
                subprocess.run(command, cwd=made, check=True)
                shutil.move(f"{made}/node_modules", folder)
    return folder / "pyright" / "index.js"
