"""Finding the operations of an application: in a module, by name, or in a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import DeclarationError
from penstock.pipeline.definition import MARK, Definition, definition_of

__all__ = ["discover", "load_app", "load_module"]


OURS = Path(__file__).parents[1]
STANDARD = Path(sysconfig.get_path("stdlib"))


def discover(module: ModuleType) -> tuple[Definition, ...]:
    """The operations of a module: its `operations` list if it has one, else every marked object in its namespace."""
    listed = vars(module).get("operations")
    if isinstance(listed, list | tuple):
        return _distinct(map(definition_of, listed), module.__name__)
    marked = [value for value in vars(module).values() if _is_marked(value)]
    return _distinct(map(definition_of, marked), module.__name__)


def load_app(spec: str) -> tuple[Definition, ...]:
    """The operations that "pkg.module", "pkg.module:name" or the path of a .py file stands for.

    The current folder is importable. Whatever is wrong is a DeclarationError; an error of the module itself is its
    cause.
    """
    place, _, name = spec.partition(":")
    module = load_module(spec)
    if not name:
        return discover(module)
    if name not in vars(module):
        raise DeclarationError(f"module {place!r} has no {name!r}; it has: {_public_names(module)}")
    found = getattr(module, name)
    return _distinct(map(definition_of, found if isinstance(found, list | tuple) else [found]), spec)


def load_module(spec: str) -> ModuleType:
    """The module that "pkg.module", "pkg.module:name" or the path of a .py file stands for."""
    place = spec.partition(":")[0]
    if place.endswith(".py"):
        return _file_module(Path(place))
    if not all(place.split(".")):
        raise DeclarationError(f"{spec!r} names no module; write pkg.module, pkg.module:name or path/to/file.py")
    return _named_module(place)


def _is_marked(value: Any) -> bool:
    return isinstance(value, Definition) or MARK in getattr(value, "__dict__", {})


def _distinct(definitions: Iterable[Definition], place: str) -> tuple[Definition, ...]:
    found: dict[str, Definition] = {}
    for definition in definitions:
        other = found.setdefault(definition.name.casefold(), definition)
        if other is not definition:
            raise DeclarationError(
                f"{_written(other)} and {_written(definition)} are both operations named {definition.name!r}, "
                "ignoring case; rename one of them"
            )
    if not found:
        raise DeclarationError(f'{place!r} holds no operations; mark a class or function with @operation("name")')
    return tuple(found.values())


def _written(definition: Definition) -> str:
    source: Any = definition.source
    source = getattr(source, "function", source)
    return f"{source.__module__}.{source.__qualname__}"


def _named_module(name: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise DeclarationError(f"there is no module {name!r}; looked in the current folder, too") from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _file_module(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise DeclarationError(f"there is no file {str(path)!r}")
    # Like a script, a file may import its neighbours.
    _make_importable(path.parent)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and _file_of(loaded) == path:
        return loaded
    if loaded is not None or not name.isidentifier():
        name = f"penstock_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Models look up their module by name while it is being executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        failed = _failed(path.name, error)
        if isinstance(error, ImportError) and "relative import" in str(error):
            here = Path.cwd() if path.is_relative_to(Path.cwd()) else path.parent.parent
            dotted = ".".join(path.relative_to(here).with_suffix("").parts)
            failed = DeclarationError(f"{failed}; a file of a package is named as a module, such as --app {dotted}")
        raise failed from error
    return module


def _failed(place: str, error: BaseException) -> DeclarationError:
    """What went wrong while a module was imported, and the line of the user's code where it did."""
    where = _line_of(error)
    if isinstance(error, DeclarationError):
        return DeclarationError(f"{where}: {error}" if where else str(error), error.faults)
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return DeclarationError(
        f"{place!r} cannot be imported: {type(error).__name__}: {said}" + (f" ({where})" if where else "")
    )


def _line_of(error: BaseException) -> str | None:
    """File, line and text of the innermost line that is the user's own: neither ours, nor of a library."""
    if isinstance(error, SyntaxError) and error.filename:
        return _written_line(error.filename, error.lineno or 1, error.text)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    frames = [frame for frame in frames if not Path(frame.filename).is_relative_to(OURS)]
    own = [frame for frame in frames if not _is_library(Path(frame.filename))] or frames
    return _written_line(own[-1].filename, own[-1].lineno or 1, own[-1].line) if own else None


def _written_line(file: str, line: int, text: str | None) -> str:
    return f"{file}, line {line}" + (f": {text.strip()}" if text and text.strip() else "")


def _is_library(file: Path) -> bool:
    return "site-packages" in file.parts or file.is_relative_to(STANDARD)


def _file_of(module: ModuleType) -> Path | None:
    found = getattr(module, "__file__", None)
    return Path(found).resolve() if found else None


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _public_names(module: ModuleType) -> str:
    return ", ".join(name for name, value in vars(module).items() if _is_marked(value)) or "no operations"
