"""Dependencies point one way: a module may use the lines over it, never those under it or its neighbours."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent

# A part may import the parts of lower lines, and itself. Within the first line nothing needs its neighbours,
# except that everything may raise our errors.
LINES: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("secret_keys", "graphs", "retention"),
    ("machine", "clock", "schema", "settings", "failpoints", "listing", "printable", "services"),
    ("pipeline",),
    ("db",),
    ("journal", "formats", "targets"),
    ("access",),
    ("outbox",),
    ("blobs",),
    ("idempotency", "lifecycles"),
    ("operations",),
    ("event_sources",),
    ("machines", "engine"),
    ("resources",),
    ("blob_resources", "lifecycle_resources", "access_resources", "webhook_resources", "telemetry"),
    ("api",),
    ("dashboard", "client"),
    ("api.app",),  # puts the API and the dashboard together
    ("cli",),
    ("testing", "pytest_plugin"),
)
LEVEL = {part: level for level, line in enumerate(LINES) for part in line}
APART = tuple(part for part in LEVEL if "." in part)  # modules that stand elsewhere than their folders
FACADES = ("__init__", "__main__")  # they only re-export or start

# The package root exports what users write, so it stands with the engine; modules below may not use it.
ROOT_LEVEL = LEVEL["engine"]

# The same inside `operations/`: its folders and modules, each line over those that use it.
OPERATIONS: tuple[tuple[str, ...], ...] = (
    ("states", "messages", "counts", "row_keys"),
    ("model", "tables"),
    ("pace", "visibility", "auditing"),
    ("moves", "operation_ids", "worker_records"),
    ("chunk",),
    ("rows",),
    ("inbox",),
    ("draining", "pruning"),
    ("validating",),
    ("running",),
    ("views",),
    ("telling",),
    ("proof",),
    ("worker",),
    ("intake", "control", "exporting", "migrating", "retrying"),
    ("signals",),
    ("checking",),
    ("service",),
)
LEVEL_IN_OPERATIONS = {part: level for level, line in enumerate(OPERATIONS) for part in line}

PURE = (
    "access.chain",
    "access.model",
    "machine",
    "errors",
    "graphs.checks",
    "graphs.conditions",
    "graphs.document",
    "graphs.writing",
    "schema",
    "retention",
    "operations.states",
    "operations.messages",
    "operations.counts",
    "operations.row_keys",
    "operations.model",
    "operations.chunk.ledger",
    "operations.chunk.step_map",
    "operations.chunk.records",
    "operations.chunk.owned",
    "operations.chunk.packing",
    "operations.rows.verdicts",
    "operations.rows.segments",
    "operations.rows.gates",
    "operations.running.planning",
    "operations.worker.shares",
    "blobs.states",
    "blobs.model",
    "outbox.addresses",
    "outbox.model",
    "outbox.signing",
    "outbox.states",
    "outbox.verdicts",
    "outbox.wording",
    "idempotency.states",
    "idempotency.model",
    "idempotency.rules",
    "idempotency.header",
    "idempotency.fingerprint",
    "idempotency.routes",
    "lifecycles.model",
    "lifecycles.rules.comparing",
    "lifecycles.rules.deciding",
    "lifecycles.rules.drawing",
    "lifecycles.rules.folding",
    "lifecycles.rules.graph",
    "lifecycles.states",
    "targets.model",
    "targets.rules.pace",
    "targets.rules.retry",
    "targets.rules.isolation",
    "targets.rules.duplicates",
    "targets.rules.batch_size",
    "targets.rules.limits",
    "targets.progress",
    "targets.diagnostics.error_parsing",
    "targets.diagnostics.causes",
    "targets.diagnostics.analysis",
    "targets.composite.ordering",
    "targets.ids",
    "targets.results",
    "targets.dataverse.error_mapping",
    "targets.http.endpoint",
    "targets.http.rate_limits",
    "targets.http.error_mapping",
)
IMPURE = {"sqlalchemy", "alembic", "aiosqlite", "asyncpg", "asyncmy", "sqlite3", "socket", "ssl", "os", "pathlib"}
IMPURE |= {"httpx", "urllib", "http", "obstore", "subprocess", "threading", "concurrent", "time", "tempfile", "io"}


def modules() -> dict[str, Path]:
    """Every module by its dotted name below the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imported(path: Path, *, lazy: bool = True) -> Iterator[tuple[int, str]]:
    """Every import with its line, those inside functions too unless told. Type-checking blocks never run."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if _is_type_checking(node) or (not lazy and _is_function(node))]
    skipped = {id(inner) for block in blocks for inner in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the full name of what you import"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def part_of(name: str) -> str:
    """The folder or top module a dotted name below the package belongs to."""
    for part in APART:
        if name == part or name.startswith(f"{part}."):
            return part
    return name.partition(".")[0]


MODULES = modules()
TOP = {name for name in MODULES if part_of(name) not in FACADES}


def ours(path: Path, *, lazy: bool = True) -> Iterator[tuple[int, str]]:
    """The imports of our own modules, as names below the package; '' is the package root itself."""
    for line, name in imported(path, lazy=lazy):
        if name == "penstock" or name.startswith("penstock."):
            below = name.removeprefix("penstock").lstrip(".")
            yield line, below if part_of(below) in LEVEL else ""


def test_every_module_has_its_place_in_the_layout():
    unplaced = sorted({part_of(name) for name in TOP} - set(LEVEL))
    assert not unplaced, f"say in LINES where these belong: {unplaced}"


@pytest.mark.parametrize("name", sorted(TOP))
def test_a_module_uses_only_what_stands_over_it(name: str):
    mine, wrong = part_of(name), []
    for line, other in ours(MODULES[name]):
        level = LEVEL[part_of(other)] if other else ROOT_LEVEL
        is_own = bool(other) and part_of(other) == mine
        if not is_own and level >= LEVEL[mine]:
            wrong.append(f"{name}:{line} imports {other or 'penstock'}")
    assert not wrong


INSIDE = sorted(name.removeprefix("operations.") for name in MODULES if name.startswith("operations."))


def test_every_module_of_operations_has_its_place():
    unplaced = sorted({part_of(name) for name in INSIDE} - set(LEVEL_IN_OPERATIONS))
    assert not unplaced, f"say in OPERATIONS where these belong: {unplaced}"


@pytest.mark.parametrize("name", INSIDE)
def test_a_module_of_operations_uses_only_what_stands_over_it(name: str):
    mine, wrong = part_of(name), []
    for line, other in ours(MODULES[f"operations.{name}"]):
        part = part_of(other.removeprefix("operations."))
        if not other.startswith("operations.") or part == mine:
            continue
        if LEVEL_IN_OPERATIONS[part] >= LEVEL_IN_OPERATIONS[mine]:
            wrong.append(f"{name}:{line} imports {other}")
    assert not wrong


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_know_no_database_network_clock_or_environment(name: str):
    seen, todo, wrong = set(), [name], []
    while todo:
        module = todo.pop()
        if module in seen or module not in MODULES:
            continue
        seen.add(module)
        for line, other in imported(MODULES[module]):
            top = other.split(".")[0]
            # What users declare may hold anything; a rule may look at its options without doing what they say.
            if top == "penstock" and not other.startswith("penstock.pipeline"):
                below = other.removeprefix("penstock.")
                todo += [below, below.rpartition(".")[0]]
            elif top in IMPURE:
                wrong.append(f"{module}:{line} imports {other}")
    assert not wrong
    assert not any(part_of(module) == "db" for module in seen)


def test_nothing_is_called_utils_helpers_common_or_manager():
    homeless = {"utils", "helpers", "common", "manager"}
    assert not [name for name in MODULES if homeless.intersection(name.split("."))]


def test_no_module_of_ours_is_part_of_a_circle():
    edges = {
        name: {_home(other) for _, other in ours(path, lazy=False) if other} - {name} for name, path in MODULES.items()
    }
    done: set[str] = set()
    for name in edges:
        _visit(name, edges, done, ())


def _home(name: str) -> str:
    """The module that a dotted name is, or is defined in."""
    return name if name in MODULES else name.rpartition(".")[0]


def _visit(name: str, edges: dict[str, set[str]], done: set[str], path: tuple[str, ...]) -> None:
    assert name not in path, " -> ".join((*path[path.index(name) :], name))
    if name not in done:
        for other in sorted(edges.get(name, ())):
            _visit(other, edges, done, (*path, name))
        done.add(name)


def test_the_standard_library_is_not_shadowed():
    names = {part_of(name) for name in TOP}
    assert not names & set(sys.stdlib_module_names)
