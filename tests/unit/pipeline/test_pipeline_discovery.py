"""Finding the operations of an application."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from penstock.errors import DeclarationError
from penstock.pipeline import Context, definition_of, discover, load_app, operation


class Row(BaseModel):
    id: int


@operation("one")
def one(row: Row, ctx: Context) -> None: ...


@operation("two")
def two(row: Row, ctx: Context) -> None: ...


@operation("ONE")
def other_one(row: Row, ctx: Context) -> None: ...


SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from penstock.pipeline import Context, operation

@dataclass
class Person:
    name: str

@operation("{name}")
def greet(row: Person, ctx: Context) -> None: ...

several = [greet]
"""


def module(**names: object) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(names)
    return made


def names(spec: str) -> list[str]:
    return [definition.name for definition in load_app(spec)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.covers("SG-054")
def test_every_marked_object_of_a_module_is_found_once():
    assert discover(module(a=one, b=two, again=one, row=Row, number=5)) == (definition_of(one), definition_of(two))


@pytest.mark.covers("SG-054")
def test_a_list_of_operations_decides():
    changed = definition_of(two).with_overrides({"max_errors": 1})
    assert discover(module(a=one, operations=[changed])) == (changed,)


def test_names_are_unique_ignoring_case():
    with pytest.raises(DeclarationError, match=r"\.one and .*\.other_one are both operations named 'ONE'"):
        discover(module(a=one, b=other_one))


def test_a_module_without_operations_is_told():
    with pytest.raises(DeclarationError, match="'made' holds no operations; mark a class or function"):
        discover(module(row=Row))


def test_a_list_may_hold_operations_only():
    with pytest.raises(DeclarationError, match="is not an operation; mark it with @operation"):
        discover(module(operations=[Row]))


@pytest.mark.covers("SG-054")
def test_an_app_is_a_module_of_the_current_folder(folder: Path):
    (folder / "shop_app.py").write_text(SOURCE.format(name="shop"))
    assert names("shop_app") == names("shop_app:greet") == names("shop_app:several") == ["shop"]


@pytest.mark.covers("SG-054")
def test_an_app_is_a_file_that_may_import_its_neighbours(folder: Path):
    (folder / "apps").mkdir()
    (folder / "apps" / "neighbour_app.py").write_text(SOURCE.format(name="next-door"))
    (folder / "apps" / "my-app.py").write_text("from neighbour_app import greet")
    assert names("apps/my-app.py") == names("apps/my-app.py:greet") == ["next-door"]


def test_a_file_named_like_a_loaded_module_does_not_replace_it(folder: Path):
    (folder / "json.py").write_text(SOURCE.format(name="mine"))
    before = sys.modules["json"]
    assert names("json.py") == ["mine"]
    assert sys.modules["json"] is before


@pytest.mark.parametrize(
    "spec, message",
    [
        ("no_such_app", "there is no module 'no_such_app'"),
        ("no_such_app.inner", "there is no module 'no_such_app.inner'"),
        ("no_such_app.py", "there is no file"),
        ("", "names no module"),
        (":greet", "names no module"),
        ("./good_app", "'./good_app' names no module; write pkg.module, pkg.module:name or path/to/file.py"),
        ("..", "names no module"),
        ("good_app:nosuch", "module 'good_app' has no 'nosuch'; it has: greet"),
        ("good_app:Person", "is not an operation"),
        ("broken_app", "'broken_app' cannot be imported: ZeroDivisionError: division by zero"),
        ("broken_app.py", "'broken_app.py' cannot be imported: ZeroDivisionError: division by zero"),
        ("lacking_app", "'lacking_app' cannot be imported: ModuleNotFoundError: No module named 'no_such_library'"),
        ("pack_age/app.py", "attempted relative import with no known parent package ("),
        ("pack_age/app.py", "; a file of a package is named as a module, such as --app pack_age.app"),
        ("wrong_app", "operation 'x' is declared wrongly"),
        ("wrong_app.py", "operation 'x' is declared wrongly"),
    ],
)
def test_what_is_wrong_with_an_app_is_told(folder: Path, spec: str, message: str):
    (folder / "good_app.py").write_text(SOURCE.format(name="good"))
    (folder / "broken_app.py").write_text("1 / 0")
    (folder / "lacking_app.py").write_text("import no_such_library")
    (folder / "pack_age").mkdir()
    (folder / "pack_age" / "app.py").write_text("from .models import Person")
    (folder / "wrong_app.py").write_text(SOURCE.format(name="x").replace("row: Person, ctx", "ctx"))
    with pytest.raises(DeclarationError) as caught:
        load_app(spec)
    assert message in str(caught.value)


def test_the_error_of_a_module_is_the_cause(folder: Path):
    (folder / "broken_app.py").write_text("1 / 0")
    with pytest.raises(DeclarationError) as caught:
        load_app("broken_app")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


LATE = """import json

def fail():
    return json.loads("{")

fail()
"""


@pytest.mark.parametrize(
    "source, told",
    [
        ("x = 1\n1 / 0\n", "{file}, line 2: 1 / 0"),
        ("import no_such_library\n", "{file}, line 1: import no_such_library"),
        ("from json import no_such_name\n", "{file}, line 1: from json import no_such_name"),
        (LATE, '{file}, line 4: return json.loads("{{")'),
        ("x = (1,\n", "{file}, line 1: x = (1,"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 ({file}, line 2: sys.exit(3))"),
        (SOURCE.format(name="x").replace("row: Person, ctx", "ctx"), "{file}, line "),
    ],
)
@pytest.mark.parametrize("is_file", [True, False])
def test_the_line_of_the_users_code_is_named(folder: Path, source: str, told: str, is_file: bool):
    file = folder / "failing_app.py"
    file.write_text(source)
    with pytest.raises(DeclarationError) as caught:
        load_app("failing_app.py" if is_file else "failing_app")
    assert told.format(file=file) in str(caught.value)
    assert "penstock/pipeline" not in str(caught.value)


def test_the_line_of_a_module_that_the_app_imports_is_named(folder: Path):
    (folder / "inner_app.py").write_text("\nraise ValueError('inside')\n")
    (folder / "outer_app.py").write_text("import inner_app\n")
    with pytest.raises(DeclarationError) as caught:
        load_app("outer_app")
    assert f"{folder / 'inner_app.py'}, line 2: raise ValueError('inside')" in str(caught.value)
