"""From the cells of a file to a validated row. The parser runs once for every row, so it does as little as it can."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from types import GenericAlias
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from penstock.errors import DeclarationError, Fault, InvalidInput, RowInvalid, faults_of
from penstock.pipeline.cells import cells_judge, fields_of_columns
from penstock.pipeline.fields import NOT_GIVEN, SUPPORTED, ModelField, fields_of, is_struct, reader
from penstock.pipeline.secret_values import secret_fields, texts_in
from penstock.schema import Column, Schema

__all__ = ["TOGETHER", "ModelErrors", "RawRow", "RowType", "few", "model_faults", "struct_faults"]

RawRow = list[str] | dict[str, Any] | str
Validate = Callable[[Any], Any]

EMPTY = "is empty; a value is required (allow it with Annotated[str, AllowEmpty])"
MESSAGE_CHARS_MAX = 500
FAULTS_MAX = 50  # of one row that are told; a file may have thousands of columns, all of them wrong
FAULTS_TOGETHER_MAX = 5_000  # that are listed at once
TOGETHER = 100  # rows validated in one call; more would no longer fit into a core's own cache


class ModelBroke(RowInvalid):
    """A row model raised what is no verdict on its row; the row is not known to be wrong."""


class ModelErrors(list[Fault]):
    """What is told of a row whose model broke."""


class RowType:
    """The row model of an operation: the columns it knows, how a raw row becomes one, and what was wrong with it."""

    rejects: tuple[type[Exception], ...] = (ValidationError, RowInvalid)

    def __init__(self, model: Any, row_key: str | None = None) -> None:
        fields = fields_of(model)
        if not fields and not _allows_any_column(model):
            raise DeclarationError(f"the row type must be {SUPPORTED} with fields; found {_described(model)}")
        self.model, self.row_key = model, row_key
        self.fields: tuple[ModelField, ...] = fields or ()
        if row_key is not None and row_key not in self.names:
            raise DeclarationError(
                f"row_key is {row_key!r}, but {_described(model)} has no such field; it has: {', '.join(self.names)}"
            )
        _refuse_empty_values(self.fields)
        self.secret_names = secret_fields(self.fields)
        if row_key in self.secret_names:
            raise DeclarationError(f"row_key is {row_key!r}, which is a secret; a key is stored and shown")
        self.schema = Schema(tuple(map(_column, self.fields)), allows_extra=_allows_extra(model))
        self._read = reader(model)
        self._adapter = None if is_struct(model) else _adapter(model)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)

    def parser(self, columns: Sequence[str] | None) -> Callable[[Any], Any]:
        """The function that validates one raw row: cells aligned with `columns`, or records when that is None.

        An empty cell means "not given". Where the field allows it, it is the empty text; where it is required and may
        be None, it is that. Whatever is wrong raises one of `rejects`.
        """
        validate = self._validator()
        if columns is None:
            return validate
        records, told = self._records(columns), self._empty_cells_told(columns)

        def parse(cells: list[str]) -> Any:
            try:
                return validate(records((cells,))[0])
            except ModelBroke:
                raise
            except self.rejects as error:
                raise RowInvalid(faults=told(self.faults(error), cells)) from error

        return parse

    def parser_of_many(self, columns: Sequence[str] | None) -> Callable[[Sequence[Any]], list[Any]]:
        """The function that validates many raw rows in one call, for half the price; a bad row rejects them all."""
        validate = self._validator_of_many()
        records: Callable[[Sequence[Any]], list[Any]] = list if columns is None else self._records(columns)
        return lambda raws: validate(records(raws))

    def checker(self, columns: Sequence[str] | None) -> Callable[[Sequence[Any]], dict[int, list[Fault]]]:
        """The function that says what is wrong with raw rows, by index; good ones are not in it."""
        parse, judge = self.parser(columns), self._judge(columns)
        told = None if columns is None else self._empty_cells_told(columns)

        def one_by_one(raws: Sequence[Any]) -> dict[int, list[Fault]]:
            found = {}
            for i, raw in enumerate(raws):
                try:
                    parse(raw)
                except self.rejects as error:
                    found[i] = self.faults(error)
            return found

        def together(raws: Sequence[Any]) -> dict[int, list[Fault]]:
            try:
                if len(judge(raws)) == len(raws):  # a validator may leave an item of a list out
                    return {}
            except ValidationError as error:
                if error.error_count() > FAULTS_TOGETHER_MAX:
                    return one_by_one(raws)
                found = _faults_by_row(error, self.fields, columns or ())
                return found if told is None else {i: told(faults, raws[i]) for i, faults in found.items()}
            except self.rejects:
                pass  # it does not say which
            return one_by_one(raws)

        def check(raws: Sequence[Any]) -> dict[int, list[Fault]]:
            blocks = range(0, len(raws), TOGETHER)
            return {k + i: faults for k in blocks for i, faults in together(raws[k : k + TOGETHER]).items()}

        return check

    def faults(self, error: Exception) -> list[Fault]:
        """Every fault that one of `rejects` reports, by field, without the input."""
        if isinstance(error, ValidationError):
            return few(model_faults(error, self.fields))
        if isinstance(error, ModelBroke):
            return ModelErrors(error.faults)
        return few(faults_of(error) if isinstance(error, InvalidInput) else []) or [Fault(_cut(_text_of(error)))]

    def key(self, row: Any) -> str | None:
        """The text of the row's key field."""
        return None if self.row_key is None else _text(self._read(row, self.row_key))

    def key_of_raw(self, raw: RawRow | None, columns: Sequence[str] | None) -> str | None:
        """The key of a row that may not be valid, where it can be read."""
        if self.row_key is None or raw is None or isinstance(raw, str):
            return None
        record = raw if isinstance(raw, dict) else dict(zip(columns or (), raw, strict=False))
        inputs = next(field.inputs for field in self.fields if field.name == self.row_key)
        found = next((record[name] for name in (self.row_key, *inputs) if name in record), None)
        return _text(found) if isinstance(found, str | int | float) and found != "" else None

    def key_among(self, keys: Collection[str], name: str) -> str:
        """By which of these keys of a record the field is read that goes by this name; the name if by none of them."""
        by_name = [field for field in self.fields if field.name == name]
        fields = by_name or [field for field in self.fields if name in field.inputs]
        found = (key for field in fields for key in (*field.inputs, field.name) if key in keys)
        return next(found, name)

    def secret_texts(self, raw: RawRow, columns: Sequence[str] | None) -> Iterator[str]:
        """What must not be shown of a row as it was read."""
        if isinstance(raw, list) and columns is not None and len(raw) == len(columns):
            raw = dict(zip(columns, raw, strict=True))
        if isinstance(raw, dict):
            yield from texts_in([value for name, value in raw.items() if name in self.secret_names])
        elif self.secret_names:
            yield from texts_in(raw)

    def dump(self, row: Any) -> dict[str, Any]:
        """The row as JSON-able values, by field name, for showing; secrets are masked."""
        if self._adapter is None:
            shown: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(row))
        else:
            shown = self._adapter.dump_python(row, mode="json", by_alias=False)
        return shown

    def _records(self, columns: Sequence[str]) -> Callable[[Sequence[list[str]]], list[dict[str, Any]]]:
        """The function that names the cells of rows."""
        blanks = {field.name: field.blank for field in self.fields if field.blank is not NOT_GIVEN}
        names, width, named = tuple(columns), len(columns), _namer(columns)

        def records(rows: Sequence[list[str]]) -> list[dict[str, Any]]:
            if all(map(all, rows)) and {*map(len, rows)} == {width}:
                return named(rows)
            return [
                named((cells,))[0] if all(cells) and len(cells) == width else _sparse(names, cells, blanks)
                for cells in rows
            ]

        return records

    def _empty_cells_told(self, columns: Sequence[str]) -> Callable[[list[Fault], list[str]], list[Fault]]:
        """The function that says of fields which the model misses that their cells are empty."""
        found = fields_of_columns(self.fields, columns)
        places = {field.name: place for place, field in enumerate(found) if field is not None and field.needs_text}

        def told(faults: list[Fault], cells: list[str]) -> list[Fault]:
            if len(cells) != len(columns):
                return faults
            return [
                Fault(EMPTY, fault.field) if fault.field in places and not cells[places[fault.field]] else fault
                for fault in faults
            ]

        return told

    def _judge(self, columns: Sequence[str] | None) -> Callable[[Sequence[Any]], list[Any]]:
        """As `parser_of_many`, for those who want the verdict only: where cells can be judged as they are, they are."""
        parse = self.parser_of_many(columns)
        if columns is None or self._adapter is None:
            return parse
        judge = cells_judge(self._adapter_of_many.core_schema, self.fields, columns)
        if judge is None:
            return parse
        whole = _whole(judge)
        return lambda raws: whole(raws) or parse(raws)

    def _validator(self) -> Validate:
        if self._adapter is None:
            return _whole(_struct_validator(self.model, self.fields))
        return _whole(self._by_any_name(self._adapter.validator.validate_python))

    def _validator_of_many(self) -> Validate:
        if self._adapter is None:
            return _whole(_structs_validator(self.model, self.fields))
        return _whole(self._by_any_name(self._adapter_of_many.validator.validate_python))

    @cached_property
    def _adapter_of_many(self) -> TypeAdapter[Any]:
        return _adapter(GenericAlias(list, (self.model,)))

    def _by_any_name(self, validate: Callable[..., Any]) -> Validate:
        """Pydantic's validator; fields with aliases may go by their own names too."""
        if all(field.inputs == (field.name,) for field in self.fields):
            return validate
        return lambda given: validate(given, by_alias=True, by_name=True)


def _whole(validate: Validate) -> Validate:
    """The same, with `ModelBroke` for whatever a user's model raises beside its verdicts."""

    def validated(given: Any) -> Any:
        try:
            return validate(given)
        except RowType.rejects:
            raise
        except BaseException as error:
            raise ModelBroke(_cut(_text_of(error))) from error

    return validated


def model_faults(error: ValidationError, fields: Sequence[ModelField]) -> list[Fault]:
    """Pydantic's findings as faults; a field is called by its name whichever alias it was read from."""
    names = _names_by_alias(fields)
    return [_fault(found, found["loc"], names) for found in _findings(error)]


def _faults_by_row(
    error: ValidationError, fields: Sequence[ModelField], columns: Sequence[str]
) -> dict[int, list[Fault]]:
    """The same for a list of rows, by their index; a field may also be called by the place of its column."""
    names = _names_by_alias(fields)
    names.update((place, field.name) for place, field in enumerate(fields_of_columns(fields, columns)) if field)
    order = {field.name: place for place, field in enumerate(fields)}
    found: dict[int, list[tuple[int, Fault]]] = {}
    for finding in _findings(error):
        row, *path = finding["loc"]
        rank = order.get(names.get(path[0], str(path[0])), len(order)) if path else 0
        found.setdefault(int(row), []).append((rank, _fault(finding, path, names)))
    return {row: few([fault for _, fault in sorted(faults, key=itemgetter(0))]) for row, faults in found.items()}


def few(faults: list[Fault]) -> list[Fault]:
    """The first faults of a row, and how many more there are."""
    more = len(faults) - FAULTS_MAX + 1
    return faults if more < 2 else [*faults[:-more], Fault(f"and {more:,} more faults")]


def _findings(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False, include_context=False)


def _names_by_alias(fields: Sequence[ModelField]) -> dict[int | str, str]:
    return {alias: field.name for field in fields for alias in field.inputs}


def _fault(found: ErrorDetails, place: Sequence[int | str], names: Mapping[int | str, str]) -> Fault:
    first, *rest = place or (None,)
    path = ".".join(map(str, (names.get(first, first), *rest))) if first is not None else None
    # The words of a user's own validator need no introduction.
    return Fault(_cut(found["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")), path)


def struct_faults(record: Any, fields: Sequence[ModelField], error: msgspec.ValidationError) -> list[Fault]:
    """Every fault of a record by field; msgspec itself stops at the first."""
    faults = []
    for field in fields if isinstance(record, dict) else ():
        key = field.inputs[0]
        if key in record:
            try:
                msgspec.convert(record[key], field.annotation, strict=False)
            except msgspec.ValidationError as found:
                message, _, path = str(found).partition(" - at `$")
                faults.append(Fault(_cut(message), field.name + path.rstrip("`")))
        elif field.is_required:
            faults.append(Fault("Field required", field.name))
    return faults or [Fault(_cut(str(error)))]


def _struct_validator(model: Any, fields: Sequence[ModelField]) -> Validate:
    renamed = _renamed(fields)

    def validate(record: Any) -> Any:
        record = renamed(record)
        try:
            return msgspec.convert(record, model, strict=False)
        except msgspec.ValidationError as error:
            raise RowInvalid(faults=struct_faults(record, fields, error)) from error

    return validate


def _structs_validator(model: Any, fields: Sequence[ModelField]) -> Validate:
    renamed, many = _renamed(fields), list[model]

    def validate(records: list[Any]) -> Any:
        try:
            return msgspec.convert([*map(renamed, records)], many, strict=False)
        except msgspec.ValidationError as error:
            raise RowInvalid(str(error)) from error

    return validate


def _renamed(fields: Sequence[ModelField]) -> Callable[[Any], Any]:
    """The function that calls the values of a record as msgspec knows them."""
    renamed = {f.name: f.inputs[0] for f in fields if f.inputs != (f.name,)}

    def rename(record: Any) -> Any:
        if renamed and isinstance(record, dict):
            return {renamed.get(name, name): value for name, value in record.items()}
        return record

    return rename


def _namer(names: Sequence[str]) -> Callable[[Sequence[list[str]]], list[dict[str, Any]]]:
    """The function that makes records of complete rows: written out for these names, it takes half as long."""
    cells = [f"cell{place}" for place in range(len(names))]
    record = ", ".join(f"{name!r}: {cell}" for name, cell in zip(names, cells, strict=True))
    made: Callable[[Sequence[list[str]]], list[dict[str, Any]]] = eval(
        f"lambda rows: [{{{record}}} for [{', '.join(cells)}] in rows]"
    )
    return made


def _sparse(names: tuple[str, ...], cells: list[str], blanks: dict[str, str | None]) -> dict[str, Any]:
    """A row with empty cells, or with another number of cells than there are columns."""
    if len(cells) != len(names):
        raise RowInvalid(f"has {len(cells):,} cells, the header has {len(names):,}")
    record: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        if cell != "":
            record[name] = cell
        elif name in blanks:
            record[name] = blanks[name]
    return record


def _refuse_empty_values(fields: Sequence[ModelField]) -> None:
    wrong = [f"{f.name!r} is {_described(f.annotation)}" for f in fields if f.allows_empty and not f.takes_text]
    if wrong:
        raise DeclarationError(f"AllowEmpty is for text; {', '.join(wrong)}")


def _column(field: ModelField) -> Column:
    headers = tuple(dict.fromkeys((field.name, *field.inputs)))
    return Column(field.name, headers, is_required=field.is_required)


def _adapter(model: Any) -> TypeAdapter[Any]:
    try:
        adapter = TypeAdapter(model)
        adapter.rebuild()
    except PydanticUserError as error:
        raise DeclarationError(f"pydantic cannot validate rows of {_described(model)}: {error.message}") from error
    return adapter


def _allows_extra(model: Any) -> bool:
    if is_struct(model):
        return not model.__struct_config__.forbid_unknown_fields
    config = getattr(model, "model_config", None) or getattr(model, "__pydantic_config__", None) or {}
    return bool(config.get("extra") != "forbid")


def _allows_any_column(model: Any) -> bool:
    is_model = isinstance(model, type) and issubclass(model, BaseModel)
    return is_model and model.model_config.get("extra") == "allow"


def _described(model: Any) -> str:
    return getattr(model, "__qualname__", None) or repr(model)


def _text(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        value = value.value
    return value if value is None or isinstance(value, str) else str(value)


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # a user's exception may fail even at this
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS_MAX else message[:MESSAGE_CHARS_MAX] + "… (cut)"
