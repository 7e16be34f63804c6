"""The metadata of an operation: checked when it is created, stored as JSON, read back by every worker."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

import msgspec
from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from penstock.errors import DeclarationError, Fault, MetadataInvalid
from penstock.pipeline.fields import fields_of, is_struct
from penstock.pipeline.rows import model_faults, struct_faults

__all__ = ["MetaType"]


class MetaType:
    """The metadata model of an operation, or the fact that it has none."""

    def __init__(self, model: Any = None) -> None:
        self.model = None if model in (None, NoneType) else model
        is_model = isinstance(self.model, type) and issubclass(self.model, BaseModel | msgspec.Struct)
        if self.model is not None and not is_model:
            raise DeclarationError(
                f"the metadata type must be a pydantic model or a msgspec Struct; found {self.described}"
            )
        self.fields = fields_of(self.model) or () if self.model is not None else ()

    @property
    def described(self) -> str:
        """The model's name, for messages."""
        return getattr(self.model, "__qualname__", None) or repr(self.model)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(field.name for field in self.fields)

    def parse(self, data: Any) -> Any:
        """Validated metadata from a mapping or an instance of the model; `MetadataInvalid` names every fault."""
        if self.model is None:
            if data is not None and data != {}:
                raise MetadataInvalid("this operation takes no metadata")
            return None
        if isinstance(data, self.model):
            self._validate(self._plain(data))
            return data
        if data is not None and not isinstance(data, Mapping):
            raise MetadataInvalid(f"the metadata must be a mapping or a {self.described}; found {type(data).__name__}")
        required = [field.name for field in self.fields if field.is_required]
        if data is None and required:
            faults = [Fault("Field required", name) for name in required]
            raise MetadataInvalid(f"metadata is required: {', '.join(required)}", faults)
        return self._validate(dict(data or {}))

    def dump(self, meta: Any) -> Any:
        """The JSON-able form to store. It must come back whole, so secrets stand in it in clear."""
        shown = self.view(meta)
        return _unmasked(shown, self._plain(meta)) if isinstance(meta, BaseModel) else shown

    def view(self, meta: Any) -> Any:
        """The JSON-able form to show; secrets are masked."""
        if isinstance(meta, BaseModel):
            return meta.model_dump(mode="json", by_alias=False)
        return None if self.model is None else msgspec.to_builtins(msgspec.structs.asdict(meta), str_keys=True)

    def load(self, stored: Any) -> Any:
        """The metadata that `dump` wrote; `MetadataInvalid` when the model no longer takes it."""
        if self.model is None or is_struct(self.model):
            return self.parse(stored)
        try:
            return self.model.model_validate_json(msgspec.json.encode(stored), by_alias=False, by_name=True)
        except ValidationError as error:
            raise _invalid(model_faults(error, self.fields)) from error

    def _plain(self, meta: Any) -> dict[str, Any]:
        if is_struct(self.model):
            return msgspec.structs.asdict(meta)
        found: dict[str, Any] = meta.model_dump(by_alias=False, warnings=False)
        return found

    def _validate(self, record: dict[str, Any]) -> Any:
        assert self.model is not None
        try:
            if not is_struct(self.model):
                return self.model.model_validate(record, by_alias=True, by_name=True)
            renamed = {field.name: field.inputs[0] for field in self.fields}
            record = {renamed.get(name, name): value for name, value in record.items()}
            return msgspec.convert(record, self.model, strict=False)
        except ValidationError as error:
            raise _invalid(model_faults(error, self.fields)) from error
        except msgspec.ValidationError as error:
            raise _invalid(struct_faults(record, self.fields, error)) from error


def _invalid(faults: list[Fault]) -> MetadataInvalid:
    return MetadataInvalid("the metadata is not valid: " + "; ".join(map(str, faults)), faults)


def _unmasked(shown: Any, value: Any) -> Any:
    if isinstance(value, SecretStr | SecretBytes):
        secret = value.get_secret_value()
        return secret.decode() if isinstance(secret, bytes) else secret
    if isinstance(shown, dict) and isinstance(value, dict):
        return {key: _unmasked(inner, clear) for (key, inner), clear in zip(shown.items(), value.values(), strict=True)}
    if isinstance(shown, list) and isinstance(value, list | tuple):
        return [_unmasked(inner, clear) for inner, clear in zip(shown, value, strict=True)]
    return shown
