"""What a step returns, as JSON: written through the return annotation and read back as that type."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from penstock.errors import DeclarationError
from penstock.pipeline.fields import is_struct, members
from penstock.pipeline.rows import model_faults

__all__ = ["OUTPUT_BYTES_MAX", "OutputType"]

OUTPUT_BYTES_MAX = 64 * 1024
SIGNS_OF_LOSS = (b"null", b"NaN", b"Infinity")  # which numbers JSON does not have may have been written as
MASK = b'"**********"'  # how pydantic writes a secret


class OutputType:
    """The declared output of a step."""

    def __init__(self, annotation: Any = Any) -> None:
        self.annotation = annotation
        self.allows_none = annotation is Any or NoneType in members(annotation)
        self._struct = msgspec.json.Decoder(annotation, strict=False) if _mentions_struct(annotation) else None
        self._adapter = None if self._struct else _adapter(annotation)

    def encode(self, value: Any, *, bytes_max: int = OUTPUT_BYTES_MAX) -> bytes | None:
        """The value as JSON, or None for None; ValueError or TypeError when it is not what was declared."""
        if value is None:
            if self.allows_none:
                return None
            raise TypeError(f"the step returned None, but its output is declared as {self.described}")
        data = self._written(value)
        if len(data) > bytes_max:
            raise ValueError(f"the output has {len(data):,} bytes; at most {bytes_max:,} can be stored")
        if MASK in data:
            raise ValueError("the output holds a secret, which JSON would mask; keep it in a store of its own")
        if any(sign in data for sign in SIGNS_OF_LOSS) and self._loses_numbers(value, data):
            raise ValueError("the output holds NaN or an infinity, which JSON does not have; return None in its place")
        return data

    def decode(self, data: bytes) -> Any:
        """The value that `encode` wrote."""
        try:
            return self._read(data)
        except (ValidationError, msgspec.ValidationError) as error:
            raise ValueError(f"the stored output no longer fits {self.described}: {error}") from error

    def objection(self, data: bytes) -> str | None:
        """Why JSON from elsewhere is no value of the declared type, fault by fault; None when it is one."""
        if self.annotation is Any:
            return None
        try:
            self._read(data)
        except ValidationError as error:
            return "; ".join(map(str, model_faults(error, ())))
        except msgspec.ValidationError as error:
            return str(error)
        except Exception as error:  # a validator of the model is the user's code
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def described(self) -> str:
        """The declared type, for messages."""
        name = getattr(self.annotation, "__qualname__", None)
        return name if name and not get_args(self.annotation) else repr(self.annotation)

    def _read(self, data: bytes) -> Any:
        if self._adapter is None:
            assert self._struct is not None
            return self._struct.decode(data)
        return self._adapter.validate_json(data, by_alias=False, by_name=True)

    def _written(self, value: Any) -> bytes:
        try:
            if self._adapter is None:
                return msgspec.json.encode(msgspec.convert(value, self.annotation))
            return self._adapter.dump_json(value, by_alias=False, warnings="error")
        except ValueError as error:
            found = type(value).__qualname__
            raise ValueError(f"the output of type {found} cannot be stored as {self.described}: {error}") from error

    def _loses_numbers(self, value: Any, data: bytes) -> bool:
        try:
            written = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return True
        if self._adapter is None:
            return _is_lost(msgspec.to_builtins(value), written)
        return _is_lost(self._adapter.dump_python(value, by_alias=False, warnings=False), written)


def _is_lost(value: Any, written: Any) -> bool:
    """Whether a number in a value was written as null."""
    if isinstance(value, float):
        return written is None
    if isinstance(value, dict) and isinstance(written, dict):
        return any(map(_is_lost, value.values(), written.values()))
    return isinstance(value, list | tuple) and isinstance(written, list) and any(map(_is_lost, value, written))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        adapter = TypeAdapter(annotation)
        adapter.rebuild()
    except PydanticUserError as error:
        raise DeclarationError(
            f"an output of type {annotation!r} cannot be stored as JSON; use a pydantic model, a dataclass, "
            "a msgspec Struct or plain values"
        ) from error
    return adapter


def _mentions_struct(annotation: Any) -> bool:
    return is_struct(annotation) or any(map(_mentions_struct, get_args(annotation)))
