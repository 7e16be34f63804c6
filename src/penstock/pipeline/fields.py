"""What pydantic models, dataclasses, TypedDicts and msgspec Structs say about their fields."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

import msgspec
from pydantic import AliasChoices, BaseModel, RootModel, SecretStr
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from penstock.errors import DeclarationError

__all__ = ["NOT_GIVEN", "SUPPORTED", "AllowEmpty", "ModelField", "fields_of", "is_struct", "members", "reader"]

NOT_GIVEN = ...  # instead of a value
SUPPORTED = "a pydantic model, a dataclass, a TypedDict or a msgspec Struct"


class AllowEmpty:
    """Marks a text field of a row, `Annotated[str, AllowEmpty]`: an empty cell is its value, the empty text."""


@dataclass(frozen=True, slots=True)
class ModelField:
    """One field: its name, its type, and `inputs`, the keys the model's own validator reads it from."""

    name: str
    annotation: Any
    is_required: bool
    inputs: tuple[str, ...]
    allows_empty: bool = False

    @property
    def allows_none(self) -> bool:
        """Whether None is a value of this field."""
        return NoneType in members(self.annotation)

    @property
    def needs_text(self) -> bool:
        """Whether this is a text that must be given, and must not be empty where it is read from a cell."""
        return self.is_required and self.takes_text and not (self.allows_none or self.allows_empty)

    @property
    def blank(self) -> Any:
        """What an empty cell stands for: the empty text, None, or `NOT_GIVEN`."""
        if self.allows_empty:
            return ""
        return None if self.is_required and self.allows_none else NOT_GIVEN

    @property
    def takes_text(self) -> bool:
        """Whether any text at all may be a value of this field."""
        return any(
            isinstance(kind, type) and issubclass(kind, str | SecretStr) and not issubclass(kind, enum.Enum)
            for kind in members(self.annotation)
        )


def is_struct(model: object) -> bool:
    """Whether this is a msgspec Struct class."""
    return isinstance(model, type) and issubclass(model, msgspec.Struct)


def fields_of(model: Any) -> tuple[ModelField, ...] | None:
    """The model's fields in order, or None when this is no kind of model we support."""
    try:
        return _fields_of(model)
    except NameError as error:
        raise DeclarationError(f"a field of {model.__qualname__} has a type that cannot be found: {error}") from error


def _fields_of(model: Any) -> tuple[ModelField, ...] | None:
    if is_struct(model):
        return tuple(_field(f.name, f.type, f.required, f.encode_name) for f in msgspec.structs.fields(model))
    if isinstance(model, type) and issubclass(model, BaseModel) and not issubclass(model, RootModel):
        return tuple(_pydantic_field(name, info) for name, info in model.model_fields.items())
    if isinstance(model, type) and dataclasses.is_dataclass(model):
        return tuple(_dataclass_fields(model))
    if is_typeddict(model):
        hints = typing.get_type_hints(model, include_extras=True)
        return tuple(_field(name, hint, _is_required(model, name, hint), name) for name, hint in hints.items())
    return None


def _pydantic_field(name: str, info: FieldInfo) -> ModelField:
    alias = info.validation_alias or info.alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    inputs = tuple(choice for choice in choices if isinstance(choice, str))
    allows_empty = _is_allowing(info.metadata) or _allows_empty(info.annotation)
    return ModelField(name, info.annotation, info.is_required(), inputs or (name,), allows_empty)


def _field(name: str, annotation: Any, is_required: bool, key: str) -> ModelField:
    return ModelField(name, annotation, is_required, (key,), _allows_empty(annotation))


def _allows_empty(annotation: Any) -> bool:
    """Whether a type is marked, or a member of it."""
    origin = get_origin(annotation)
    if origin is Annotated and _is_allowing(annotation.__metadata__):
        return True
    is_wrapper = origin in (Annotated, Required, NotRequired, Union, UnionType)
    return is_wrapper and any(map(_allows_empty, get_args(annotation)))


def _is_allowing(notes: Iterable[Any]) -> bool:
    return any(note is AllowEmpty or isinstance(note, AllowEmpty) for note in notes)


def _is_required(model: Any, name: str, hint: Any) -> bool:
    # A TypedDict with postponed annotations has not seen its own NotRequired.
    return name in model.__required_keys__ and get_origin(hint) is not NotRequired


def _dataclass_fields(model: type) -> Iterator[ModelField]:
    hints = typing.get_type_hints(model, include_extras=True)
    for field in dataclasses.fields(model):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.init:
            yield _field(field.name, hints[field.name], not has_default, field.name)


def members(annotation: Any) -> tuple[Any, ...]:
    """The types a value may have: the members of a union, without the wrappers around them."""
    origin = get_origin(annotation)
    if origin in (Annotated, Required, NotRequired):
        return members(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in members(part))
    return (NoneType,) if annotation is None else (annotation,)


def reader(model: Any) -> Callable[[Any, str], Any]:
    """How to read a field of a row of this model."""
    return dict.__getitem__ if is_typeddict(model) else getattr
