"""The declarations users write, as strict type checkers see them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyright import diagnostics

from penstock.pipeline import load_app

HERE = Path(__file__).parent
EXAMPLES = ("device_provisioning", "batches", "functions", "every_declaration")


@pytest.fixture(scope="module")
def mypy() -> str:
    files = [str(HERE / f"{name}.py") for name in EXAMPLES]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", *files]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def pyright() -> list[dict[str, Any]]:
    return diagnostics()


def expected_of(name: str) -> dict[int, str]:
    """The types that a file says its checkers reveal, by line."""
    lines = enumerate((HERE / f"{name}.py").read_text().splitlines(), start=1)
    return {number: match[1] for number, line in lines if (match := re.search(r"# expect: (.+)$", line))}


@pytest.mark.covers("SM-099")
def test_the_declarations_are_clean_under_strict_mypy(mypy: str):
    assert f"Success: no issues found in {len(EXAMPLES)} source files" in mypy, mypy


def test_the_declarations_and_all_examples_are_clean_under_strict_pyright(pyright: list[dict[str, Any]]):
    assert [found for found in pyright if found["severity"] != "information"] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_outputs_and_metadata_have_their_declared_types_for_mypy(mypy: str, name: str):
    revealed = re.findall(rf'{name}\.py:(\d+): note: Revealed type is "(?:{name}\.)?(.+?)"', mypy)
    assert {int(number): kind for number, kind in revealed} == expected_of(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_outputs_and_metadata_have_their_declared_types_for_pyright(pyright: list[dict[str, Any]], name: str):
    said = [found for found in pyright if Path(found["file"]) == HERE / f"{name}.py"]
    revealed = {
        found["range"]["start"]["line"] + 1: match[1]
        for found in said
        if (match := re.match(r'Type of ".+" is "(.+)"$', found["message"]))
    }
    assert revealed == expected_of(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_declarations_also_compile(name: str):
    assert load_app(str(HERE / f"{name}.py"))
