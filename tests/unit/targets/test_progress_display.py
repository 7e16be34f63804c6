"""What a person sees of a bulk call while it runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.targets.progress import Phase, Progress
from penstock.targets.progress_display import ProgressDisplay, duration, sentence

HALF = Progress(
    succeeded=480, failed=20, total=1000, elapsed_s=50, instant_rate_per_second=12, estimated_remaining_s=42
)
DONE = Progress(succeeded=1000, total=1000, elapsed_s=100, overall_rate_per_second=10, phase=Phase.DONE)


def plain() -> tuple[ProgressDisplay, io.StringIO]:
    out = io.StringIO()
    return ProgressDisplay("accounts", console=Console(file=out, width=40), every_s=5), out


@pytest.mark.covers("BX-003")
def test_a_running_call_says_its_share_its_troubles_its_rate_and_what_is_left():
    assert sentence(HALF) == "500 of 1,000 records (50 %), 20 failed, 12/s, 42 s left"


def test_a_finished_call_says_how_long_it_took():
    assert sentence(DONE) == "1,000 of 1,000 records (100 %), 10/s, done in 1 min 40 s"


def test_a_stream_says_only_what_it_knows():
    assert sentence(Progress(succeeded=7, instant_rate_per_second=3)) == "7 records, 3/s"


def test_a_throttled_call_says_for_how_long():
    held = Progress(succeeded=7, elapsed_s=10, phase=Phase.THROTTLED, throttled_until_s=40)
    assert sentence(held) == "7 records, 0/s, throttled for 30 s"


def test_a_draining_call_says_so():
    assert "draining" in sentence(Progress(succeeded=7, phase=Phase.DRAINING))


@pytest.mark.parametrize("seconds, said", [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")])
def test_durations_are_said_as_a_person_would(seconds: float, said: str):
    assert duration(seconds) == said


def test_away_from_a_terminal_a_line_comes_every_few_seconds_and_at_the_end():
    meter, out = plain()
    with meter:
        for second in range(13):
            meter(Progress(succeeded=second, total=100, elapsed_s=second))
        meter(DONE)
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["5", "10", "1,000"]
    assert all(line.startswith("accounts: ") for line in lines)


def test_markup_in_a_label_is_shown_as_it_is():
    out = io.StringIO()
    with ProgressDisplay("[red]x[/red]", console=Console(file=out)) as meter:
        meter(DONE)
    assert out.getvalue().startswith("[red]x[/red]: ")


def test_in_a_terminal_the_last_state_stays_on_the_screen():
    out = io.StringIO()
    with ProgressDisplay("accounts", console=Console(file=out, force_terminal=True, width=120)) as meter:
        meter(HALF)
        meter(DONE)
    assert "done in 1 min 40 s" in out.getvalue()


@pytest.mark.parametrize("progress", [Progress(), Progress(total=0), Progress(total=0, phase=Phase.DONE), HALF])
def test_every_state_can_be_drawn(progress: Progress):
    out = io.StringIO()
    with ProgressDisplay(console=Console(file=out, force_terminal=True, width=120)) as meter:
        meter(progress)
    assert "records" in out.getvalue()
