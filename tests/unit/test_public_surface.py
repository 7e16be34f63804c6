"""The names users rely on, pinned: a change here is a change of the public interface."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import penstock
from penstock import errors, testing

ROOT = Path(penstock.__file__).parent
MODULES = sorted(
    "penstock." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.rglob("*.py")
    if path.stem not in ("__init__", "__main__", "env") and "versions" not in path.parts
)


def test_the_package_exports_the_names_of_the_tutorial_and_no_more():
    assert penstock.__all__ == [
        "AllowEmpty",
        "Backoff",
        "BatchContext",
        "Context",
        "Done",
        "Machine",
        "Notify",
        "OperationEvent",
        "Penstock",
        "PenstockError",
        "Pipeline",
        "RetryLater",
        "RowFailure",
        "RowInvalid",
        "StepFailed",
        "operation",
        "run",
        "step",
    ]


def test_what_users_need_to_test_their_pipelines_is_public():
    assert testing.__all__ == [
        "OPERATION_ID",
        "Engine",
        "ManualClock",
        "batch_context",
        "context",
        "engine",
        "json_lines",
    ]


def test_every_exported_name_can_be_had_and_others_cannot():
    assert all(getattr(penstock, name) for name in penstock.__all__)
    with pytest.raises(AttributeError, match="no attribute 'engine_room'"):
        getattr(penstock, "engine_room")  # noqa: B009


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_exists_and_has_a_docstring(name: str):
    try:
        module = importlib.import_module(name)
    except ImportError as missing:
        if (missing.name or "").startswith("penstock"):
            raise
        pytest.skip(f"needs an extra: {missing.name}")
    assert module.__doc__, f"{name} does not say why it exists"
    for exported in getattr(module, "__all__", ()):
        value = getattr(module, exported)
        if (isinstance(value, type) or callable(value)) and getattr(value, "__module__", name) == name:
            assert value.__doc__, f"{name}.{exported} has no docstring"


def test_every_error_is_ours_and_stands_in_the_tree():
    tree = errors.__doc__ or ""
    for exported in errors.__all__:
        kind = getattr(errors, exported)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            assert issubclass(kind, errors.PenstockError)
            assert exported in tree


def test_every_error_is_in_one_of_the_families_that_say_what_to_do():
    families = {kind.__name__ for kind in errors.PenstockError.__subclasses__() if kind.__module__ == errors.__name__}
    what_to_do = {"InvalidInput", "NotFound", "Conflict", "AccessRefused", "Unavailable", "DatabaseDamaged"}
    what_to_do |= {"StepFailed", "RetryLater"}
    assert families == what_to_do


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()
