"""Signal keys: templates filled for a row, and recognised in a signal."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from penstock.pipeline import Context, KeyTemplate, Pipeline, Run, definition_of, operation, step


class Row(TypedDict):
    id: int
    code: str | None


class Meta(BaseModel):
    carrier: str


@operation("keys")
class Keys(Pipeline[Row, Meta]):
    @step.signal(key="{meta.carrier}:{row.code}#{row_number}@{operation_id}", timeout=1)
    def wait(self, row: Row, ctx: Context[Meta]) -> None: ...


def key(row: Row) -> str:
    definition = definition_of(Keys)
    bound = definition.steps[0].bind(Keys())
    assert bound.key is not None
    found: str = bound.key(row, Context(Run("op", "keys", Meta(carrier="acme"), definition), 7))
    return found


@pytest.mark.covers("SG-009")
def test_a_template_is_filled_from_row_metadata_number_and_operation():
    assert key({"id": 1, "code": "x"}) == "acme:x#7@op"


@pytest.mark.parametrize("missing", [None, ""])
def test_an_empty_field_makes_no_key(missing: str | None):
    with pytest.raises(ValueError, match=r"the signal key needs row\.code, which is empty"):
        key({"id": 1, "code": missing})


@pytest.mark.covers("SG-041")
@pytest.mark.parametrize(
    "template, text, fits",
    [
        ("carrier-{row.id}", "carrier-5", True),
        ("carrier-{row.id}", "carrier-", False),
        ("carrier-{row.id}", "other-5", False),
        ("{row.a}.{row.b}", "x.y", True),
        ("{row.a}.{row.b}", "xy", False),
        ("fixed", "fixed", True),
        ("fixed", "fixed2", False),
        ("{{{row.id}}}", "{5}", True),
        ("{row.a}{row.b}", "x", False),
        ("{row.a}{row.b}", "xy", True),
        ("{row.a}-{row.b}-x", "----x", True),
        ("{row.a}-{row.b}-x", "--x", False),
        ("{row.a}--{row.b}", "-----", True),
        ("{row.a}-x{row.b}-x", "-x-x\n-x-x", True),
        ("{row.a}" + "-{row.b}" * 9 + "-ok", "-" * 500, False),
        ("{row.a}" + "-{row.b}" * 9 + "-ok", "-" * 500 + "ok", True),
    ],
)
def test_a_template_knows_the_keys_that_could_come_of_it(template: str, text: str, fits: bool):
    assert KeyTemplate.parse(template).matches(text) is fits
