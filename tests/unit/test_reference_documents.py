"""The reference pages say what the code says: tables and diagrams are compared, not believed."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from penstock import errors
from penstock.cli.app import app
from penstock.cli.problems import EXIT_CODES as ERROR_CODES
from penstock.cli.problems import EXIT_MEANINGS, INTERRUPTED, ONLY_SIGNALS_AWAITED
from penstock.cli.run import EXIT_CODES as RUN_CODES
from penstock.errors import PenstockError
from penstock.formats.opening import EXTENSIONS
from penstock.machines import built_in
from penstock.operations.states import OPERATION, ROW_STEP
from penstock.operations.views.error_views import ERROR_TYPES
from penstock.pipeline.options import STEP_RULES, OperationOptions, StepOptions
from penstock.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
SHARED_OPTIONS = {"--db", "--url", "--app", "--json", "--limit", "--cursor"}
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
COVERED = re.compile(r"(?:SM|SG|GR|LC)-\d{3}")


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def table(text: str, *head: str) -> list[list[str]]:
    """The rows of the first table with this head."""
    lines = iter(text.splitlines())
    if f"| {' | '.join(head)} |" not in lines:  # this also moves behind it
        raise AssertionError(f"there is no table with the columns {head}")
    next(lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in _while_in_table(lines)]


def _while_in_table(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield line


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def written(value: Any) -> str:
    """A default as the tables spell it."""
    return f"`{json.dumps(value)}`"


def commands(group: Any, path: tuple[str, ...] = ("penstock",)) -> Iterator[tuple[str, Any]]:
    """Every command with its usage."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            given = [p for p in command.params if p.param_type_name == "argument"]
            arguments = [p.metavar if p.required else f"[{p.metavar}]" for p in given]
            yield " ".join([*path, name, *arguments]), command


COMMANDS = dict(commands(get_command(app)))


def test_the_settings_page_lists_every_setting_with_its_default_and_meaning():
    expected = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default is None else f"`{default}`" if isinstance(default, str) else written(default)
        expected.append([f"`{name}`", shown, field.description])
    assert table(page("settings.md"), "setting", "default", "meaning") == expected


def test_the_options_of_operations_are_all_listed_with_their_defaults():
    found = {row[0]: row[1] for row in table(page("declarations.md"), "option", "default", "meaning")}
    defaults = dataclasses.asdict(OperationOptions()) | {"description": None}
    shown = {f"`{name}`": written(value) for name, value in defaults.items()} | {"`description`": "the docstring"}
    assert found == shown


def test_the_options_of_steps_are_all_listed_with_their_defaults():
    found = {row[0]: row[1] for row in table(page("declarations.md"), "option", "default", "steps", "meaning")}
    spelled = {"backoff": "`Backoff()`", "retry_on": "`(Exception,)`", "every": "required"}
    shown = {
        f"`{field.name}`": spelled.get(field.name) or written(field.default)
        for field in dataclasses.fields(StepOptions)
    }
    assert found == shown


def test_every_option_of_a_step_names_the_kinds_of_steps_that_take_it():
    for name, _, kinds, _ in table(page("declarations.md"), "option", "default", "steps", "meaning"):
        takers = [kind for kind, rules in STEP_RULES.items() if name.strip("`") in rules]
        assert kinds == ("all" if len(takers) == len(STEP_RULES) else ", ".join(takers)), name


def test_the_machines_page_draws_every_built_in_machine_as_its_table_says():
    drawn = dict(re.findall(r"^## (.+?)\n.*?^```mermaid\n(.*?)^```$", page("machines.md"), re.MULTILINE | re.DOTALL))
    assert drawn == {name: machine.to_mermaid() for name, machine in built_in().items()}


def test_the_command_line_page_lists_every_command_and_no_more():
    assert re.findall(r"^### (.+)$", page("command-line.md"), re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("usage", COMMANDS)
def test_a_command_is_described_in_the_words_of_its_help(usage: str):
    command, text = COMMANDS[usage], section(page("command-line.md"), usage)
    assert " ".join(command.help.partition("\n\n")[0].split()) in text
    own = [p for p in command.params if p.param_type_name == "option" and not SHARED_OPTIONS & set(p.opts)]
    expected = [[f"`{' '.join(filter(None, (p.opts[0], p.metavar)))}`", p.help] for p in own]
    assert (table(text, "option", "meaning") if "|" in text else []) == expected


def test_the_options_that_commands_share_are_described_once():
    shared = {p.opts[0]: p for command in COMMANDS.values() for p in command.params if p.opts[0] in SHARED_OPTIONS}
    found = {row[0].strip("`").split()[0]: row[1] for row in table(page("command-line.md"), "option", "meaning")}
    assert found == {name: option.help for name, option in shared.items()}


def test_the_command_line_page_lists_every_exit_code_in_the_words_of_the_help():
    found = {int(row[0]): row[1] for row in table(page("command-line.md"), "code", "meaning")}
    assert found == EXIT_MEANINGS
    codes = {*RUN_CODES.values(), INTERRUPTED, ONLY_SIGNALS_AWAITED, os.EX_TEMPFAIL, *(code for _, code in ERROR_CODES)}
    assert codes == set(EXIT_MEANINGS)


def test_the_states_page_lists_every_state_of_operations_and_rows():
    text = page("states-and-errors.md")
    operation = [row[0] for row in table(section(text, "An operation"), "state", "meaning")]
    row = [row[0] for row in table(section(text, "A row"), "state", "meaning")]
    assert sorted(operation) == sorted(OPERATION.states)
    assert sorted(row) == sorted({*ROW_STEP.states, "Invalid"} - {"Skipped"})


def test_the_errors_page_lists_every_error_type_and_every_error():
    text = page("states-and-errors.md")
    assert [row[0] for row in table(text, "type", "what happened", "what helps")] == list(ERROR_TYPES)
    listed = {row[0].strip("`") for row in table(text, "error", "what to do")}
    kinds = {name for name in errors.__all__ if issubclass(getattr(errors, name), PenstockError)}
    assert listed == kinds - {"PenstockError"}


def test_the_formats_page_lists_every_extension_and_every_reason_to_refuse_a_file():
    text = page("formats.md")
    extensions = {e for row in table(text, "extension", "format") for e in re.findall(r"`(\.\w+)`", row[0])}
    assert extensions == set(EXTENSIONS)
    assert {row[0].strip("`") for row in table(text, "code", "reason")} == set(_refusals())


def _refusals() -> Iterator[str]:
    """Every `code` with which a file is refused anywhere in the package, the default included."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "FileRejected":
                codes = [k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)]
                yield from map(str, codes or ["unreadable"])


def test_every_behaviour_that_a_test_covers_is_on_the_list():
    listed = re.findall(r"^\| ((?:SM|SG|GR|LC)-\d{3}) ", page("behaviours.md"), re.MULTILINE)
    assert len(listed) == len(set(listed)), "an id is listed twice"
    covered = {i for path in (ROOT / "tests").rglob("*.py") for i in COVERED.findall(path.read_text())}
    assert covered - set(listed) == set()


@pytest.mark.parametrize("kind", ["SM", "SG", "GR", "LC"])
def test_the_ids_of_behaviours_have_no_gaps(kind: str):
    numbers = [int(n) for n in re.findall(rf"^\| {kind}-(\d{{3}}) ", page("behaviours.md"), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("document", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_the_links_of_a_document_lead_somewhere(document: Path):
    targets = [target for target in LINK.findall(document.read_text()) if "://" not in target]
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


def test_every_document_is_on_the_index():
    linked = {(DOCS / target).resolve() for target in LINK.findall((DOCS / "README.md").read_text())}
    folders = ("tutorial", "how-to", "reference", "explanation")
    assert {path for folder in folders for path in (DOCS / folder).glob("*.md")} <= linked
