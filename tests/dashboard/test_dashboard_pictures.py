"""Pictures, forms and streams of the dashboard: pure, so that no page is needed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Literal

import msgspec
import pytest
from pydantic import BaseModel, Field, SecretStr

from penstock.clock import ManualClock
from penstock.dashboard.charts import bar, flow_picture, throughput_picture
from penstock.dashboard.diagrams import machine_picture
from penstock.dashboard.forms import fields_for, filled_in
from penstock.dashboard.live import Live, Scene, Update
from penstock.dashboard.rows import story
from penstock.dashboard.words import bytes_size, percent, words
from penstock.errors import Fault
from penstock.machine import Machine
from penstock.machines import built_in
from penstock.operations.model import Flow, HistoryEntry, RowView, StepFlow, StepView, Throughput
from penstock.pipeline.metadata import MetaType

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MARKUP = "<b>&\"'"


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)


def texts(picture: str) -> list[str]:
    return ["".join(each.itertext()) for each in parsed(picture).iter("text")]


def test_a_flow_counts_who_is_through_and_who_is_left_behind():
    steps = (StepFlow(-1, "validation", 9, failed=1), StepFlow(0, MARKUP, 4, waiting=3, running=2))
    picture = flow_picture(Flow(10, steps))
    said = " ".join(texts(picture))
    for part in ("9 through", "1 failed", "4 through", "3 waiting", "2 running", MARKUP):
        assert part in said
    assert parsed(picture).get("aria-label", "").startswith("10 rows. validation: 9 through, 1 failed")
    assert parsed(flow_picture(Flow(0, steps))) is not None


def test_throughput_says_its_peak_and_its_time():
    picture = throughput_picture(Throughput(NOW, 2.0, (0, 40, 10)))
    assert texts(picture) == ["20 rows/s at most", "00:00:00 UTC", "00:00:06 UTC"]


def test_a_bar_never_holds_more_than_its_whole():
    widths = [float(part.get("width", "")) for part in parsed(bar([("ok", 8), ("bad", 8)], 10, MARKUP)).iter("rect")]
    assert sum(widths) == pytest.approx(100)
    assert not list(parsed(bar([("ok", 8)], 0, "")).iter("rect"))


@pytest.mark.parametrize("machine", built_in().values(), ids=lambda machine: machine.name)
def test_every_built_in_machine_can_be_drawn(machine: Machine):
    drawn = parsed(machine_picture(machine, counts=dict.fromkeys(machine.states, 3)))
    assert len(list(drawn.iter("rect"))) == len(machine.states)
    assert len(list(drawn.iter("path"))) == 1 + len({(line.source, line.target) for line in machine.transitions})
    right = float(drawn.get("width", "0"))
    for box in drawn.iter("rect"):
        assert float(box.get("x", "")) > 0
        assert float(box.get("x", "")) + float(box.get("width", "")) < right


def test_names_in_a_diagram_are_text():
    machine = Machine.of(MARKUP, ("<b>A</b>", "<i>go</i>", "B"), ("B", "again", "B"), settled=("B",))
    assert {"<b>A</b>", "B"} <= set(texts(machine_picture(machine, here="B")))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    a: int


class Meta(BaseModel):
    name: str = Field(description="Who")
    count: int = 3
    price: float | None = None
    day: date
    at: datetime | None = None
    colour: Colour = Colour.RED
    size: Literal["s", "m"]
    ready: bool = False
    inner: Inner | None = None
    pin: SecretStr


def test_a_form_has_a_field_of_the_right_kind_for_each_of_the_model():
    fields = {field.name: field for field in fields_for(MetaType(Meta))}
    assert {name: field.kind for name, field in fields.items()} == {
        "name": "text", "count": "text", "price": "text", "day": "date", "at": "datetime-local", "colour": "select",
        "size": "select", "ready": "checkbox", "inner": "json", "pin": "password",
    }  # fmt: skip
    assert (fields["name"].hint, fields["name"].is_required) == ("Who", True)
    assert (fields["count"].default, fields["count"].mode) == ("3", "numeric")
    assert (fields["colour"].options, fields["colour"].default) == (("red", "blue"), "red")
    assert fields["size"].is_required
    assert fields_for(MetaType(None)) == []


class Struct(msgspec.Struct):
    name: str
    size: Literal["s", "m"] = "s"


def test_structs_have_forms_too():
    assert [(f.name, f.kind, f.is_required) for f in fields_for(MetaType(Struct))] == [
        ("name", "text", True), ("size", "select", False),
    ]  # fmt: skip


class Login(BaseModel):
    user: str
    token: SecretStr


class Logins(BaseModel):
    login: Login
    codes: list[SecretStr] = []


def test_secrets_below_a_field_are_filled_in_as_json_that_is_not_shown():
    fields = fields_for(meta := MetaType(Logins))
    assert [(each.kind, each.mode) for each in fields] == [("password", "json"), ("password", "json")]
    given, faults = filled_in(fields, {"meta.login": '{"user": "ana", "token": "t"}', "meta.codes": '["c"]'})
    assert not faults
    assert meta.parse(given) == Logins(login=Login(user="ana", token=SecretStr("t")), codes=[SecretStr("c")])
    assert filled_in(fields, {"meta.login": "t-4711"})[1][0].field == "login"


def test_what_is_filled_in_is_read_by_the_model_and_what_is_empty_is_not_given():
    meta = MetaType(Meta)
    form = {"meta.name": " ana ", "meta.day": "2030-01-02", "meta.size": "m", "meta.pin": "1", "meta.inner": '{"a": 1}'}
    given, faults = filled_in(fields_for(meta), form)
    assert not faults
    read = meta.parse(given)
    assert (read.name, read.day, read.count, read.ready, read.inner) == (
        "ana", date(2030, 1, 2), 3, False, Inner(a=1),
    )  # fmt: skip
    given, faults = filled_in(fields_for(meta), {"meta.inner": "{"})
    assert isinstance(faults[0], Fault)
    assert faults[0].field == "inner"


def at(second: int) -> datetime:
    return NOW + timedelta(seconds=second)


def test_a_row_is_told_generation_by_generation():
    done = [StepView(-1, "validation", "Completed", 1, None, None), StepView(0, "a", "Completed", 1, at(1), at(2))]
    now = StepView(1, "b", "WaitingForCompletion", 1, at(9), None, signal_key="k")
    row = RowView(7, "R7", "WaitingForCompletion", 1, "b", 1, 2, (*done, now))
    history = [
        HistoryEntry(7, 1, "b", 0, 1, "postponed", "StepFailure", "busy", at(3)),
        HistoryEntry(7, 1, "b", 0, 2, "retried", "StepFailure", "no", at(4), actor="ana", asked_at=at(8)),
    ]
    assert [(each.generation, each.step, each.state, each.attempt) for each in story(row, history)] == [
        (0, "validation", "Completed", 1),
        (0, "a", "Completed", 1),
        (0, "b", "Failed", 1),
        (0, "b", "Failed", 2),
        (1, "b", "Retried", 0),
        (1, "b", "WaitingForCompletion", 1),
    ]


@dataclass
class Counter:
    """Renders how often it was asked."""

    times: int = 0
    is_last: bool = False

    async def render(self, scene: Scene) -> Update:
        self.times += 1
        return Update({"steady": "same", "count": str(self.times)}, ["pause"], self.is_last)


async def test_a_scene_is_rendered_once_for_all_who_look():
    clock, counter = ManualClock(), Counter()
    live = Live(clock)
    since = clock.monotonic()
    first = [await live.scene("a").now(counter.render, since) for _ in range(3)]
    assert [update.parts["count"] for update in first] == ["1", "1", "1"]
    clock.advance(1)
    assert (await live.scene("a").now(counter.render, since)).parts["count"] == "2"
    assert (await live.scene("b").now(counter.render, since)).parts["count"] == "3"


async def test_who_looks_again_after_the_end_sees_what_has_become_of_it_since():
    clock, counter = ManualClock(), Counter(is_last=True)
    live = Live(clock)
    assert len([event async for event in live.stream("a", counter.render)]) == 2
    clock.advance(0.1)
    counter.is_last = False  # it was retried
    async with aclosing(live.stream("a", counter.render)) as stream:
        assert json.loads((await anext(stream)).split("data: ")[1])["parts"]["count"] == "2"
        live.close()
        assert not [event async for event in stream]


async def test_a_stream_sends_all_parts_at_first_and_ends_with_what_it_shows():
    counter = Counter(is_last=True)
    sent = [event async for event in Live(ManualClock()).stream("a", counter.render)]
    assert [event.split("\n")[0] for event in sent] == ["event: parts", "event: end"]
    assert json.loads(sent[0].split("data: ")[1])["parts"] == {"steady": "same", "count": "1"}


async def test_a_closed_stream_says_nothing_more():
    live = Live(ManualClock())
    live.close()
    assert not [event async for event in live.stream("a", Counter().render)]


def test_values_are_said_in_words():
    assert words("CompletedWithErrors") == "Completed with errors"
    assert words("cancel_requested") == "cancel requested"
    assert (percent(999_999, 1_000_000), percent(1, 0)) == ("99.9 %", "0 %")
    assert (bytes_size(999), bytes_size(1_500), bytes_size(2_500_000_000)) == ("999 bytes", "1.5 kB", "2.5 GB")
