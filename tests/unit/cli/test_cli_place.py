"""Where commands work, and the commands that they name to be tried next."""

from __future__ import annotations

from penstock.cli.session import Place


def test_a_command_to_try_next_leads_to_the_same_place_and_hides_the_password():
    place = Place("postgresql://ana:secret@db/penstock", "shop.ops:load")
    tried = place.command("run", "--continue", "1a2b", app=True)
    assert tried.endswith("run --continue 1a2b --db 'postgresql://ana:***@db/penstock' --app shop.ops:load")
