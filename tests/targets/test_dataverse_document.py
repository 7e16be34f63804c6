"""The example of the how-to on Dataverse does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dataverse_remote import opened

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "load-dataverse.md"


async def test_the_example_loads_records_and_reports(capsys: pytest.CaptureFixture[str]):
    code = re.search(r"^```python file=load\.py\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], "load.py", "exec"), names)
    async with opened() as remote:
        await remote.create({"name": "old", "code": "c0"})
        records = [{"name": f"n{n}", "code": f"c{n}"} for n in range(4)] + [{"name": "bad", "code": "c4", "part": "x"}]
        await names["load"](remote.server.url, remote.server.credential(), records)
    assert capsys.readouterr().out.splitlines()[-1] == "3 created, 1 updated, 1 failed"
