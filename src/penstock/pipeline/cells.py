"""Judging the cells of rows where they stand: no cell is named and no model is made, which takes half as long.

It reads pydantic's core schema of the model. Where that says anything but "these fields, each for itself", nothing is
judged here, and rows are validated as models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import SchemaValidator

from penstock.pipeline.fields import NOT_GIVEN, ModelField

__all__ = ["cells_judge", "fields_of_columns"]

Judge = Callable[[Sequence[list[Any]]], list[Any] | None]


def fields_of_columns(fields: Sequence[ModelField], columns: Sequence[str]) -> list[ModelField | None]:
    """The field that each column is read into, by any of its names."""
    by_name = {name: field for field in fields for name in _names(field)}
    return [by_name.get(column) for column in columns]


def cells_judge(many: Mapping[str, Any], fields: Sequence[ModelField], columns: Sequence[str]) -> Judge | None:
    """The function that validates the cells of many rows, made from the core schema of a list of models.

    What is wrong raises pydantic's ValidationError, with the place of a cell instead of its field's name. It answers
    None when something is missing: then the model has to say what. None instead of a function where it cannot be done.
    """
    row, found = many.get("items_schema", {}), fields_of_columns(fields, columns)
    if many["type"] != "list" or not _is_bare(row) or not _is_clear(row, fields, found):
        return None
    schemas = {field.name: _schema(row["schema"]["fields"], field) for field in fields}
    if None in schemas.values():
        return None
    at_columns = [{"type": "any"} if field is None else schemas[field.name] for field in found]
    cells = {"type": "tuple", "items_schema": at_columns, "strict": False}
    rows: Any = {"type": "list", "items_schema": cells, "strict": False}
    validate, width = SchemaValidator(rows, row.get("config")).validate_python, len(columns)
    blanks = [*map(_blank, found)]

    def judge(raws: Sequence[list[Any]]) -> list[Any] | None:
        if {*map(len, raws)} != {width}:
            return None
        if not all(map(all, raws)):
            raws = [cells if all(cells) else _filled(cells, blanks) for cells in raws]
            if any(NOT_GIVEN in cells for cells in raws):
                return None
        judged: list[Any] = validate(raws)
        return judged

    return judge


def _is_bare(row: Mapping[str, Any]) -> bool:
    """Whether a model does nothing but hold its fields."""
    does_more = row.get("custom_init") or row.get("post_init") or row.get("root_model")
    return row.get("type") == "model" and not does_more and row["schema"]["type"] == "model-fields"


def _is_clear(row: Mapping[str, Any], fields: Sequence[ModelField], found: Sequence[ModelField | None]) -> bool:
    """Whether each column belongs to one field at most, each field that is needed has one, and the others may be."""
    names, read = [name for field in fields for name in _names(field)], [field for field in found if field is not None]
    model, config = row["schema"], row.get("config") or {}
    is_forbidden = "forbid" in (model.get("extra_behavior"), config.get("extra_fields_behavior"))
    return (
        len({*names}) == len(names)
        and len({field.name for field in read}) == len(read)
        and all(field in read for field in fields if field.is_required)
        and (len(read) == len(found) or not (is_forbidden or "extras_schema" in model))
        and not config.get("validate_default")
    )


def _schema(of_fields: Mapping[str, Any], field: ModelField) -> dict[str, Any] | None:
    """What a cell is validated by; None where a field looks at others, or makes a default that could fail."""
    schema: dict[str, Any] = of_fields[field.name]["schema"]
    if any(part.get("type") == "with-info" for part in _parts(schema)):
        return None
    if field.is_required:
        return schema
    is_constant = schema["type"] == "default" and "default" in schema and not schema.get("validate_default")
    return {"type": "nullable", "schema": schema} if is_constant else None


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every dict in a schema."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from _parts(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _parts(value)


def _blank(field: ModelField | None) -> Any:
    """What stands for an empty cell here, where a field that need not be given takes None for that."""
    if field is None:
        return ""
    return None if field.blank is NOT_GIVEN and not field.is_required else field.blank


def _filled(cells: list[str], blanks: Sequence[Any]) -> list[Any]:
    return [cell or blank for cell, blank in zip(cells, blanks, strict=True)]


def _names(field: ModelField) -> set[str]:
    return {field.name, *field.inputs}
