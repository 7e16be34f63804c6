"""A form for metadata, made from its model; and metadata from what was filled in. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock.errors import Fault
from penstock.pipeline.fields import is_struct
from penstock.pipeline.metadata import MetaType

__all__ = ["FormField", "fields_for", "filled_in", "json_of"]

PREFIX = "meta."
_INPUTS = {
    "date": "date",
    "date-time": "datetime-local",
    "time": "time",
    "email": "email",
    "uri": "url",
    "password": "password",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form: `kind` is checkbox, select, json, or the type of an input."""

    name: str
    kind: str
    is_required: bool
    hint: str = ""
    options: tuple[str, ...] = ()
    default: str = ""
    mode: str = "text"  # which keyboard a phone shows; json where the text is read as JSON

    @property
    def id(self) -> str:
        """Its name in the form."""
        return PREFIX + self.name


def fields_for(meta: MetaType) -> list[FormField]:
    """The fields of a form that asks for this metadata."""
    if meta.model is None:
        return []
    if is_struct(meta.model):
        schema = msgspec.json.schema(meta.model)
    else:
        schema = meta.model.model_json_schema(by_alias=False, mode="validation")
    definitions = schema.get("$defs", {})
    schema = _resolved(schema, definitions)
    properties = schema.get("properties", {})
    required = set(schema.get("required", ()))
    return [
        _hidden(field) if field.name in meta.secret_names else field
        for name in meta.names
        for field in [_field(name, _resolved(properties.get(name, {}), definitions), name in required)]
    ]


def _hidden(field: FormField) -> FormField:
    """The field of a secret, or of a value with secrets in it."""
    return replace(field, kind="password", default="", options=())


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its reference followed; of several kinds the one that is not null, text before numbers."""
    found = dict(schema)
    for place in [found, *found.get("allOf", ())]:
        if "$ref" in place:
            found |= definitions.get(str(place["$ref"]).rpartition("/")[2], {})
    kinds = [_resolved(kind, definitions) for kind in found.get("anyOf", ()) if kind.get("type") != "null"]
    if kinds:
        numeric = any(kind.get("type") in ("number", "integer") for kind in kinds)
        chosen = next((kind for kind in kinds if kind.get("type") in ("number", "integer")), kinds[0])
        found = {**chosen, **{key: value for key, value in found.items() if key != "anyOf"}, "decimal": numeric}
    return found


def _field(name: str, schema: Mapping[str, Any], is_required: bool) -> FormField:
    hint = str(schema.get("description", ""))
    given = schema.get("default")
    default = "" if given is None else given if isinstance(given, str) else json.dumps(given)
    kind, mode, options = _input(schema)
    return FormField(name, kind, is_required and kind != "checkbox", hint, options, default, mode)


def _input(schema: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """The kind of a field, the keyboard for it, and what can be chosen."""
    kind, mode = _INPUTS.get(str(schema.get("format", "")), "text"), "text"
    options: tuple[str, ...] = ()
    match schema:
        case {"enum": [*values]}:
            kind, options = "select", tuple(map(str, values))
        case {"const": value}:
            kind, options = "select", (str(value),)
        case {"type": "boolean"}:
            kind = "checkbox"
        case {"type": "integer"}:
            mode = "numeric"
        case {"type": "number"} | {"decimal": True}:
            mode = "decimal"
        case {"type": "object" | "array"}:
            kind = mode = "json"
    return kind, mode, options


def filled_in(fields: list[FormField], form: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[Fault]]:
    """Metadata as it was filled in, and what of it is no JSON; what was left empty is not given.

    Values stay text: the model reads numbers and dates from it, and says what is wrong with them.
    """
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for field in fields:
        value = form.get(field.id)
        text = value.strip() if isinstance(value, str) else ""
        if field.kind == "checkbox":
            found[field.name] = bool(text)
        elif field.mode == "json" and text:
            try:
                found[field.name] = json_of(text)
            except ValueError as error:
                faults.append(Fault(f"is no JSON: {error}", field.name))
        elif text:
            found[field.name] = text
    return (found if fields else None), faults


def json_of(text: str) -> Any:
    """The JSON in a field of a form; `ValueError` where there is none that can be read."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
