"""The declarations users write, as a strict type checker sees them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline import load_app

HERE = Path(__file__).parent
EXAMPLES = ("device_provisioning", "batches", "functions")


@pytest.fixture(scope="module")
def checked() -> str:
    files = [str(HERE / f"{name}.py") for name in EXAMPLES]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", *files]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.covers("SM-099")
def test_the_examples_are_clean_under_strict_mypy(checked: str):
    assert "Success: no issues found in 3 source files" in checked, checked


@pytest.mark.parametrize("name", EXAMPLES)
def test_outputs_and_metadata_have_their_declared_types(checked: str, name: str):
    expected = {
        number: match[1]
        for number, line in enumerate((HERE / f"{name}.py").read_text().splitlines(), start=1)
        if (match := re.search(r"# expect: (\w+)$", line))
    }
    revealed = re.findall(rf'{name}\.py:(\d+): note: Revealed type is "(?:{name}\.)?(.+?)"', checked)
    assert {int(number): kind for number, kind in revealed} == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_also_compile(name: str):
    assert load_app(str(HERE / f"{name}.py"))
