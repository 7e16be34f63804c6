"""The metadata of an operation: checked when it is created, stored as JSON, read back by every worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

import msgspec
from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError

from penstock.errors import DeclarationError, Fault, MetadataInvalid
from penstock.graphs.names import similar
from penstock.pipeline.fields import fields_of, is_struct
from penstock.pipeline.rows import model_faults, struct_faults
from penstock.pipeline.secret_values import in_clear, mask_texts, masked_document, secret_fields, secrets_in, texts_in

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
        self.secret_names = secret_fields(self.fields)

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

    def unknown(self, names: Iterable[str]) -> list[Fault]:
        """A fault for each name that the model would ignore; none where it may read more than its fields."""
        if self.model is None or (not is_struct(self.model) and _reads_more(self.model)):
            return []
        known = {name for field in self.fields for name in (field.name, *field.inputs)}
        listed = f"; known: {', '.join(self.names)}"
        return [
            Fault(f"is not a field of the metadata{similar(name, known) or listed}", name)
            for name in names
            if name not in known
        ]

    def secrets(self, meta: Any) -> tuple[str, ...]:
        """The texts that must not be shown."""
        return tuple(texts_in([*secrets_in(meta)]))

    def dump(self, meta: Any) -> Any:
        """The JSON-able form that comes back whole, with secrets in clear: it is encrypted where it is kept."""
        shown = self._json(meta)
        if not (expected := self.secrets(meta)):
            return shown
        try:
            whole = in_clear(shown, meta)
            if self.secrets(self.load(whole)) == expected:
                return whole
        except ValueError:  # bytes that are no text
            pass
        raise MetadataInvalid(
            f"the secrets of {self.described} would not come back as they are: each must be text, or a value that its "
            "model reads again from JSON"
        )

    def view(self, meta: Any) -> Any:
        """The JSON-able form to show; secrets are masked, whatever a serializer of the model makes of them."""
        shown, secrets = self._json(meta), self.secrets(meta)
        return masked_document(shown, secrets) if secrets else shown

    def _json(self, meta: Any) -> Any:
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
            raise self._invalid(model_faults(error, self.fields), stored) from self._cause(error)

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
            raise self._invalid(model_faults(error, self.fields), record) from self._cause(error)
        except msgspec.ValidationError as error:
            raise self._invalid(struct_faults(record, self.fields, error), record) from error

    def _invalid(self, faults: list[Fault], record: Mapping[str, Any]) -> MetadataInvalid:
        """Every fault. The words of a user's validator may repeat what was given: secrets are masked in them."""
        secrets = [*texts_in([value for name, value in record.items() if name in self.secret_names])]
        faults = [Fault(mask_texts(fault.message, secrets), fault.field) for fault in faults]
        return MetadataInvalid("the metadata is not valid: " + "; ".join(map(str, faults)), faults)

    def _cause(self, error: ValidationError) -> ValidationError | None:
        """What a traceback may show: pydantic's error repeats the input."""
        return None if self.secret_names else error


def _reads_more(model: type[BaseModel]) -> bool:
    """Whether a model may read names that its fields do not tell, or refuses them itself."""
    aliases = [info.validation_alias for info in model.model_fields.values()]
    validators = model.__pydantic_decorators__.model_validators.values()
    return (
        model.model_config.get("extra", "ignore") != "ignore"
        or any(validator.info.mode != "after" for validator in validators)
        or any(isinstance(alias, AliasChoices | AliasPath) for alias in aliases)
    )
