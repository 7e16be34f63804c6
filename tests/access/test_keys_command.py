"""`penstock keys`: a key is printed once, listed without its secret, and revoked."""

from __future__ import annotations

import json

import pytest

from penstock.cli import main


@pytest.fixture
def penstock(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["db", "upgrade"]) == 0
    capsys.readouterr()

    def run(*words):
        code = main(words)
        return code, *capsys.readouterr()

    return run


def test_a_key_is_made_listed_and_revoked(penstock):
    code, out, err = penstock(
        "keys", "create", "ci", "--role", "operate", "--operation", "prices", "--expires-in", "9d"
    )
    assert (code, out.startswith("psk_"), "not shown again" in err) == (0, True, True)
    secret = out.strip().rpartition("_")[2]
    code, out, _ = penstock("keys", "list", "--json")
    (listed,) = json.loads(out)["items"]
    assert secret not in out
    assert (listed["role"], listed["operations"], listed["state"]) == ("operate", ["prices"], "Active")
    code, out, _ = penstock("keys", "revoke", listed["id"])
    assert (code, out) == (0, f"Key {listed['id']} of ci is revoked.\n")
    assert "Revoked" in penstock("keys", "list")[1]


def test_what_was_done_to_keys_is_listed_and_a_mark_shows_that_it_was_not_changed(penstock):
    penstock("keys", "create", "ci")
    _, kept, _ = penstock("audit", "mark")
    penstock("keys", "create", "cd")
    _, out, _ = penstock("audit", "list", "--json")
    assert [entry["details"]["name"] for entry in json.loads(out)["items"]] == ["cd", "ci"]
    assert penstock("audit", "mark", "--compare", kept.strip())[0] == 0
    assert penstock("audit", "mark", "--compare", "1:abc")[0] == 1
    assert "key.create" in penstock("audit", "list")[1]


def test_a_wrong_role_and_an_unknown_key_are_refused(penstock):
    assert "role: is one of read, operate, admin; found 'root'" in penstock("keys", "create", "x", "--role", "root")[2]
    assert "API key not found: 'nope'" in penstock("keys", "revoke", "nope")[2]
