"""The other commands, and what all of them have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli import main
from penstock.cli.app import app
from penstock.cli.problems import EXIT_MEANINGS
from penstock.machine import Machine
from penstock.machines import built_in

APP = str(Path(__file__).parent / "cli_app.py")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def penstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def walk(path: tuple[str, ...], found: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, found
    for name, inner in getattr(found, "commands", {}).items():
        yield from walk((*path, name), inner)


COMMANDS = [
    pytest.param(path, found, id=" ".join(("penstock", *path))) for path, found in walk((), typer.main.get_command(app))
]


@pytest.mark.parametrize("path, found", COMMANDS)
def test_every_command_says_in_one_line_what_it_does_and_gives_an_example(
    penstock: Run, path: tuple[str, ...], found: Any
):
    summary = found.help.strip().splitlines()[0]
    assert re.fullmatch(r"[A-Z].{10,100}\.", summary)
    assert found.epilog.startswith(f"Example: {' '.join(('penstock', *path))}")
    code, out, _ = penstock(*path, "--help")
    assert code == 0
    assert "Example: penstock" in out


@pytest.mark.parametrize("path, found", COMMANDS)
def test_help_shows_no_type_for_flags(penstock: Run, path: tuple[str, ...], found: Any):
    assert "bool" not in penstock(*path, "--help")[1].lower()


@pytest.mark.parametrize("path", [(), ("run",)])
def test_help_explains_the_exit_codes(penstock: Run, path: tuple[str, ...]):
    text = " ".join(penstock(*path, "--help")[1].split())
    for code, meaning in EXIT_MEANINGS.items():
        assert f"{code}: {meaning}" in text


@pytest.mark.parametrize("path, found", COMMANDS)
def test_every_command_speaks_json_and_takes_a_database(path: tuple[str, ...], found: Any):
    if hasattr(found, "commands"):
        return
    options = {name for parameter in found.params for name in parameter.opts}
    assert "--json" in options
    assert "--db" in options or path in (("machines",), ("load",))  # these use no database of ours


def test_the_version_is_printed(penstock: Run):
    code, out, _ = penstock("--version")
    assert code == 0
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\S*\n", out)


def test_nothing_at_all_shows_help_and_is_wrong_usage(penstock: Run):
    code, out, err = penstock()
    assert code == 2
    assert "Usage: penstock" in out + err


@pytest.mark.parametrize("words", [("bogus",), ("ops", "bogus"), ("ops", "list", "--limit", "0"), ("ops", "show")])
def test_wrong_usage_is_exit_2_in_both_languages(penstock: Run, words: tuple[str, ...]):
    code, out, err = penstock(*words)
    assert (code, out) == (2, "")
    assert "--help" in err
    code, out, err = penstock(*words, "--json")
    assert (code, err) == (2, "")
    assert json.loads(out)["type"] == "urn:penstock:problem:invalid-input"


# --- machines


@pytest.mark.covers("SM-001")
def test_all_machines_are_printed_as_tables(penstock: Run):
    _, out, _ = penstock("machines")
    for machine in built_in().values():
        assert f"\n{machine.name}\n" in f"\n{out}"
        for line in machine.transitions:
            assert re.search(rf"^{line.source} +{line.event} +{line.target}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", ["row-step", "row step", "RowStep", "row_step", "ROWSTEP"])
def test_a_machine_is_found_however_it_is_spelled(penstock: Run, name: str):
    code, out, _ = penstock("machines", name, "--json")
    assert code == 0
    assert Machine.from_json(json.loads(out)) == built_in()["row step"]


def test_machines_are_drawn_by_mermaid(penstock: Run):
    assert penstock("machines", "blob", "--mermaid")[1] == built_in()["blob"].to_mermaid()
    assert penstock("machines", "--mermaid")[1].count("stateDiagram-v2") == len(built_in())


def test_the_machines_are_a_list_for_machines(penstock: Run):
    names = [item["definition"]["name"] for item in json.loads(penstock("machines", "--json")[1])["items"]]
    assert names == ["operation", "row step", "idempotency key", "blob", "delivery"]


def test_an_unknown_machine_and_two_forms_at_once_are_refused(penstock: Run):
    assert penstock("machines", "operations")[0::2] == (
        1,
        "penstock: unknown machine 'operations'; did you mean 'operation'? "
        "known: operation, row step, idempotency key, blob, delivery\n",
    )
    assert penstock("machines", "--mermaid", "--json")[0] == 2


# --- db


def test_the_database_is_made_then_found_up_to_date(penstock: Run, tmp_path: Path):
    assert "was created; it is now at" in penstock("db", "upgrade")[1]
    assert (tmp_path / "penstock.db").exists()
    assert "up to date" in penstock("db", "upgrade")[1]
    again = json.loads(penstock("db", "upgrade", "--json")[1])
    assert again["before"] == again["after"]


def test_a_database_is_checked(penstock: Run):
    assert penstock("db", "check")[0] == 1
    penstock("db", "upgrade")
    code, out, _ = penstock("db", "check")
    assert code == 0
    assert "sqlite" in out
    report = json.loads(penstock("db", "check", "--json")[1])
    assert report["isOk"] is True
    assert report["problems"] == []


def test_a_schema_that_is_missing_is_exit_1_with_the_command_to_run(penstock: Run, tmp_path: Path):
    (tmp_path / "penstock.db").touch()
    code, out, _ = penstock("db", "check")
    assert code == 1
    assert "run `penstock db upgrade`" in out


@pytest.mark.databases("postgresql")
def test_a_server_that_needs_an_upgrade_says_which_command_does_it(penstock: Run, fresh_url: str):
    code, _, err = penstock("ops", "list", "--db", fresh_url)
    assert code == 1
    assert "run `penstock db upgrade`" in err
    assert penstock("db", "upgrade", "--db", fresh_url)[0] == 0
    assert penstock("ops", "list", "--db", fresh_url)[:2] == (0, "0 operations found\n")


# --- verify


def test_verify_is_clean_after_a_run_and_finds_a_planted_difference(penstock: Run, tmp_path: Path):
    (tmp_path / "guests.csv").write_text("name,age\nAnn,30\nBea,x\n")
    penstock("run", "invite", "guests.csv", "--app", APP, "--meta", "words=Hi")
    code, out, _ = penstock("verify")
    assert code == 0
    assert out.startswith("Clean: 1 operation, 1 chunk, 2 rows")
    _tamper(tmp_path / "penstock.db")
    code, out, _ = penstock("verify")
    assert code == 1
    assert out.startswith("1 difference in 1 operation") or "differences in 1 operation" in out
    report = json.loads(penstock("verify", "--json", "--deep")[1])
    assert report["isClean"] is False
    assert all(difference["message"] for difference in report["differences"])


def _tamper(database: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE penstock_chunk SET succeeded = succeeded + 5")


# --- config


def test_config_shows_every_setting_with_its_origin_and_no_secret(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "penstock.toml").write_text("chunk_rows = 50\n")
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", "postgresql://ann:s3cret@host/name")
    code, out, _ = penstock("config", "--app", "shop")
    assert code == 0
    assert "s3cret" not in out
    assert re.search(r"^database_url +postgresql://ann:\*\*\*@host/name +environment ", out, re.MULTILINE)
    assert re.search(r"^chunk_rows +50 +penstock\.toml ", out, re.MULTILINE)
    assert re.search(r"^app +shop +argument ", out, re.MULTILINE)
    items = {item["name"]: item for item in json.loads(penstock("config", "--json")[1])["items"]}
    assert items["lease_s"]["origin"] == "default"
    assert items["database_url"]["value"] == "postgresql://ann:***@host/name"


def test_a_wrong_setting_is_named(penstock: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_CHUNK_ROW", "5")
    code, _, err = penstock("ops", "list")
    assert code == 1
    assert "PENSTOCK_CHUNK_ROW: is not a setting; did you mean PENSTOCK_CHUNK_ROWS?" in err


@pytest.mark.parametrize(
    "name, hint", [("PENSTOCK_FOO", ""), ("PENSTOCK_CHUNK_ROW", "did you mean PENSTOCK_CHUNK_ROWS?")]
)
def test_config_works_and_shows_names_that_are_unknown(
    penstock: Run, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
):
    monkeypatch.setenv(name, "5")
    code, out, _ = penstock("config")
    assert code == 0
    assert re.search(r"^chunk_rows +1000 +default ", out, re.MULTILINE)
    assert f"{name}: is not a setting" in out
    assert hint in out
    assert "`penstock config`" not in out
    (fault,) = json.loads(penstock("config", "--json")[1])["faults"]
    assert fault["field"] == name
    code, _, err = penstock("ops", "list")
    assert code == 1
    assert f"{name}: is not a setting; {hint or '`penstock config` lists them all'}" in err


def test_config_shows_a_wrong_value_and_the_default_that_stands_for_it(
    penstock: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PENSTOCK_CHUNK_ROWS", "many")
    (tmp_path / "penstock.toml").write_text("flush_s = 3\n")
    code, out, _ = penstock("config")
    assert code == 0
    assert re.search(r"^flush_s +3.0 +penstock.toml ", out, re.MULTILINE)
    assert "PENSTOCK_CHUNK_ROWS: Input should be a valid integer" in out


# --- secrets

SECRETIVE = """
from pydantic import BaseModel, SecretStr
from penstock import Context, operation

class Row(BaseModel):
    n: int

class Access(BaseModel):
    token: SecretStr

@operation("secretive")
async def secretive(row: Row, ctx: Context[Access]) -> None:
    token = ctx.meta.token.get_secret_value()
    assert token == "hush-token"
    if row.n == 2:
        raise ValueError(f"cannot use {token}")
"""


def test_no_command_prints_a_secret_of_the_metadata(penstock: Run, tmp_path: Path):
    (tmp_path / "secretive.py").write_text(SECRETIVE)
    (tmp_path / "rows.csv").write_text("n\n1\n2\n")
    (tmp_path / "meta.json").write_text('{"token": "hush-token"}')
    given = ("secretive", "rows.csv", "--app", "secretive.py", "--meta-file", "meta.json")
    printed = [penstock("run", *given), penstock("run", *given, "--json")]
    made = json.loads(printed[-1][1])["id"]
    for command in ("show", "rows", "errors", "history", "watch"):
        printed += [penstock("ops", command, made), penstock("ops", command, made, "--json")]
    printed += [penstock("ops", "list", "--json"), penstock("verify"), penstock("doctor"), penstock("config")]
    printed += [penstock("ops", "validate", *given), penstock("ops", "retry", made, "--app", "secretive.py")]
    assert all("hush-token" not in out + err for _, out, err in printed)
    assert "cannot use **********" in "".join(out for _, out, _ in printed)
    assert json.loads(penstock("ops", "show", made, "--json")[1])["metadata"] == {"token": "**********"}
    assert b"hush-token" not in b"".join(path.read_bytes() for path in tmp_path.glob("penstock.db*") if path.is_file())


def test_a_new_key_is_printed_alone_and_accepted_as_a_setting(penstock: Run, monkeypatch: pytest.MonkeyPatch):
    code, out, _ = penstock("config", "--new-key")
    assert code == 0
    assert json.loads(penstock("config", "--new-key", "--json")[1])["key"] != out.strip()
    monkeypatch.setenv("PENSTOCK_SECRET_KEY", out.strip())
    for words in (("config",), ("config", "--json"), ("doctor",)):
        _, printed, told = penstock(*words)
        assert out.strip() not in printed + told
    assert re.search(r"^secret_key +\*\*\* +environment ", penstock("config")[1], re.MULTILINE)
