"""Secrets in models (`SecretStr`, `SecretBytes`, `Secret[T]`): where they are, and how they stay out of sight."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, RootModel, Secret, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from penstock.pipeline.fields import ModelField, fields_of

__all__ = [
    "MASK",
    "in_clear",
    "mask_fields",
    "mask_texts",
    "masked_document",
    "mentions_secret",
    "secret_fields",
    "secrets_in",
    "texts_in",
]

MASK = "**********"  # as pydantic writes it
SECRETS = (Secret, SecretStr, SecretBytes)
WORD_CHARS_MIN = 4  # a shorter secret is masked where it stands alone: it would be found inside any sentence


def mentions_secret(annotation: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Whether values of this type are secrets, or may hold some."""
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, SECRETS):
        return True
    if id(annotation) in seen:
        return False
    inner = [*get_args(annotation)]
    inner += [found for name in ("__value__", "__supertype__") if (found := getattr(annotation, name, None))]
    if isinstance(kind, type):
        inner += [field.annotation for field in fields_of(kind) or ()]
    if isinstance(kind, type) and issubclass(kind, RootModel):
        inner.append(kind.model_fields["root"].annotation)
    return any(mentions_secret(each, seen | {id(annotation)}) for each in inner)


def secret_fields(fields: Iterable[ModelField]) -> frozenset[str]:
    """Every name that a field may go by which is a secret, or may hold some."""
    return frozenset(
        name for field in fields if mentions_secret(field.annotation) for name in (field.name, *field.inputs)
    )


def secrets_in(value: Any) -> Iterator[Any]:
    """Every secret that a value holds, however deep."""
    if isinstance(value, SECRETS):
        yield value
        return
    for inner in _parts(value):
        yield from secrets_in(inner)


def texts_in(value: Any) -> Iterator[str]:
    """Every text that a value holds, however deep: what must not be shown of it."""
    if isinstance(value, SECRETS):
        value = value.get_secret_value()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    parts = [*_parts(value)]
    if not parts and value not in (None, "", (), [], {}):
        yield str(value)
    for inner in parts:
        yield from texts_in(inner)


def in_clear(shown: Any, value: Any) -> Any:
    """The JSON form `shown` of a value, with its secrets in clear."""
    if isinstance(value, SECRETS):
        return to_jsonable_python(value.get_secret_value())
    parts = dict(_named_parts(shown, value))
    if isinstance(shown, dict):
        return {name: in_clear(inner, parts[name]) if name in parts else inner for name, inner in shown.items()}
    if isinstance(shown, list):
        return [in_clear(inner, parts[i]) if i in parts else inner for i, inner in enumerate(shown)]
    return in_clear(shown, value.root) if isinstance(value, RootModel) else shown


def _named_parts(shown: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of a value by the names or places they have in its JSON form; none where these do not match."""
    if not isinstance(shown, dict | list):
        return
    if isinstance(value, RootModel):
        yield from _named_parts(shown, value.root)
    elif isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        yield from ((name, getattr(value, name)) for name in shown if isinstance(name, str) and hasattr(value, name))
    elif len(parts := [*_parts(value)]) == len(shown):
        yield from zip(shown if isinstance(shown, dict) else range(len(shown)), parts, strict=True)


def mask_texts(text: str, secrets: Iterable[str]) -> str:
    """A text without the secrets in it, the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        if text == secret:
            return MASK
        if len(secret) >= WORD_CHARS_MIN:
            text = text.replace(secret, MASK)
    return text


def mask_fields(raw: Any, names: Collection[str], columns: Sequence[str] | None) -> Any:
    """A row as it was read, to show: these fields are masked whole, and so is a row whose fields are not known."""
    match raw:
        case dict():
            return {name: MASK if name in names and inner not in (None, "") else inner for name, inner in raw.items()}
        case list() if columns is not None and len(raw) == len(columns):
            return [MASK if name in names and cell else cell for name, cell in zip(columns, raw, strict=True)]
        case None:
            return None
        case _:
            return MASK


def masked_document(document: Any, secrets: Iterable[str]) -> Any:
    """A JSON document without the secrets in its texts."""
    match document:
        case str():
            return mask_texts(document, secrets)
        case dict():
            return {key: masked_document(inner, secrets) for key, inner in document.items()}
        case list():
            return [masked_document(inner, secrets) for inner in document]
        case _:
            return document


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, BaseModel):
        return [*value.__dict__.values(), *(value.__pydantic_extra__ or {}).values()]
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return ()
