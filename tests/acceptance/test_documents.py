"""The examples in the documents are run: files are written as shown, commands print what is shown.

A block ```` ```python file=members.py ```` is a file; ```` ```console exit=3 ```` holds commands after `$ ` and what
they print, where a line `…` stands for any number of lines and `…` in a line for any text.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import forked
import pytest
from patience import HANG_S
from servers import free_port, install

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)((?: \w+=\S+)*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


PORT = re.compile(r"\b84\d\d\b")  # what documents have their servers listen on


@dataclass(frozen=True)
class Block:
    kind: str
    options: dict[str, str]
    text: str


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    for port in set(PORT.findall(text)):  # it may be in use here
        text = text.replace(port, str(free_port()))
    found = BLOCK.findall(text)
    return [Block(kind, dict(o.split("=", 1) for o in options.split()), text) for kind, options, text in found]


def is_run(block: Block) -> bool:
    return "file" in block.options or block.kind == "console"


def pattern(shown: str) -> str:
    lines = []
    for line in shown.splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append(".*".join(re.escape(part.rstrip()) for part in line.split("…")) + r"[ ]*\n")
    return "".join(lines)


@cache
def commands() -> Path:
    """A folder with `penstock` and `python`."""
    folder = Path(tempfile.mkdtemp(prefix="commands-"))
    atexit.register(shutil.rmtree, folder)
    for name, words in (("python", []), ("penstock", ["-m", "penstock"])):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join([*forked.python(), *words])} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def run_console(block: Block, folder: Path) -> None:
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        path = os.pathsep.join([str(commands()), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "COLUMNS": "140", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == int(block.options.get("exit", 0)), f"$ {command}\n{done.stdout}"
        assert re.fullmatch(pattern(shown), done.stdout), f"$ {command}\n{done.stdout}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_document_work_as_shown(document: Path, tmp_path: Path):
    try:
        for block in blocks(document):
            if "$ curl" in block.text:
                install("curl", "curl")
            if "file" in block.options:
                (tmp_path / block.options["file"]).write_text(block.text)
            elif block.kind == "console":
                run_console(block, tmp_path)
    finally:
        for started in tmp_path.glob("*.pid"):  # what the example would have ended
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(started.read_text()), signal.SIGTERM)


def test_the_first_document_has_an_example():
    assert sum(map(is_run, blocks(ROOT / "README.md"))) >= 4
