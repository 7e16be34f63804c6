"""Rows that are corrected on their page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, Field

from penstock import Context, Pipeline, operation, step
from penstock.api import Trusted, create_app
from penstock.testing import Engine, engine

pytestmark = pytest.mark.databases("sqlite")


class Sheet(BaseModel):
    name: str
    is_open: bool
    tags: list[str]
    share: float
    note: str | None
    amount: int = Field(gt=0)


@operation("sheets", row_key="name")
class Sheets(Pipeline[Sheet, None]):
    @step
    async def read(self, sheet: Sheet, ctx: Context[None]) -> None: ...


SHEET = {"name": "one\r\n<two>\n", "is_open": True, "tags": ["a", "ö"], "share": 1.0, "note": None, "amount": 0}


def browser_of(works: Engine) -> httpx.AsyncClient:
    app = create_app(works.penstock, access=Trusted())
    headers = {"origin": "http://penstock.test"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://penstock.test", headers=headers)


def as_a_browser_sends(page: httpx.Response) -> dict[str, str]:
    """The fields of the form that corrects a row: an input has no line breaks, a text area none at its beginning."""
    inputs = re.findall(r'<input id="field-\d+" name="([^"]+)" value="([^"]*)"', page.text)
    areas = re.findall(r'<textarea id="field-\d+" name="([^"]+)"[^>]*>\r?\n?([^<]*)</textarea>', page.text)
    fields = {name: unescape(re.sub(r"[\r\n]", "", value)) for name, value in inputs}
    fields |= {name: re.sub(r"\r\n|\r|\n", "\r\n", unescape(value)) for name, value in areas}
    return fields | {"generation": "0"}


async def test_a_correction_changes_only_the_fields_that_were_touched(database_url: str, tmp_path: Path):
    async with engine([Sheets], url=database_url, tmp_path=tmp_path) as works, browser_of(works) as pages:
        id = (await works.create(Sheets, json.dumps([SHEET]).encode(), file_name="sheets.json")).id
        await works.work_until_idle()
        at = f"/dashboard/operations/{id}/rows/1"
        fields = as_a_browser_sends(await pages.get(at))
        assert len(fields) == len(SHEET) + 1
        untouched = await pages.post(f"{at}/fix", data=fields)
        assert "Nothing was changed" in (await pages.get(untouched.headers["location"])).text
        fields |= {"field.amount": "7", "field.tags": '["b"]'}
        assert (await pages.post(f"{at}/fix", data=fields)).status_code == 303
        await works.work_until_idle()
        row = await works.operations.row(id, 1)
        assert (row.state, row.data) == ("Completed", {**SHEET, "amount": 7, "tags": ["b"]})
