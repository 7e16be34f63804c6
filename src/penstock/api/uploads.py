"""Uploads: a multipart form, whose file goes to disk while it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
from fastapi import Request
from starlette.datastructures import UploadFile

from penstock.errors import Fault, InvalidInput, MetadataInvalid
from penstock.settings import Settings

__all__ = ["UPLOAD_BODY", "Upload", "received"]

NAME_CHARS_MAX = 200
FIELDS_MAX = 20

_FIELDS = {
    "file": {"type": "string", "format": "binary", "description": "The file: .csv, .tsv, .json, .jsonl or .ndjson."},
    "operationName": {"type": "string", "maxLength": NAME_CHARS_MAX, "examples": ["price-update"]},
    "metadata": {"type": "string", "description": "A JSON object.", "examples": ['{"currency": "EUR"}']},
    "options": {"type": "string", "description": 'A JSON object of options of this run: {"book.retries": 5}.'},
    "createdBy": {
        "type": "string",
        "maxLength": NAME_CHARS_MAX,
        "description": "Only where callers are anonymous; otherwise the credential says who it is.",
    },
}


def upload_body(*required: str) -> dict[str, Any]:
    """The form as OpenAPI describes it."""
    schema = {"type": "object", "required": list(required), "properties": _FIELDS}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


UPLOAD_BODY = upload_body("file", "operationName")
CHECK_BODY = upload_body("operationName")


@dataclass(frozen=True, slots=True)
class Upload:
    """What a form holds."""

    operation: str
    file: BinaryIO | None
    file_name: str
    metadata: Any
    options: Mapping[str, Any] | None
    created_by: str | None


@asynccontextmanager
async def received(request: Request, settings: Settings, *, needs_file: bool) -> AsyncIterator[Upload]:
    """The form of a request, checked; its file is removed when the block ends."""
    limits = {"max_files": 1, "max_fields": FIELDS_MAX, "max_part_size": settings.metadata_bytes_max}
    async with request.form(**limits) as form:
        fields = {name.casefold(): value for name, value in form.multi_items() if isinstance(value, str)}
        file = next((value for _, value in form.multi_items() if isinstance(value, UploadFile)), None)
        faults = [*_missing(fields, file, needs_file=needs_file), *_too_long(fields)]
        if faults:
            raise InvalidInput("the form is invalid: " + "; ".join(map(str, faults)), faults)
        yield Upload(
            operation=fields["operationname"],
            file=None if file is None else file.file,
            file_name="" if file is None else file.filename or "",
            metadata=_object("metadata", fields.get("metadata")),
            options=_object("options", fields.get("options")),
            created_by=fields.get("createdby") or None,
        )


def _missing(fields: Mapping[str, str], file: UploadFile | None, *, needs_file: bool) -> list[Fault]:
    faults = [] if fields.get("operationname") else [Fault("is required", "operationName")]
    if needs_file and file is None:
        faults.append(Fault("is required; send a multipart form with a part that has a file name", "file"))
    return faults


def _too_long(fields: Mapping[str, str]) -> list[Fault]:
    return [
        Fault(f"has {len(fields[name.casefold()])} characters; at most {NAME_CHARS_MAX} are taken", name)
        for name in ("operationName", "createdBy")
        if len(fields.get(name.casefold(), "")) > NAME_CHARS_MAX
    ]


def _object(name: str, text: str | None) -> Any:
    if text is None or not text.strip():
        return None
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise MetadataInvalid(f"{name} is not JSON: {error}", [Fault(f"is not JSON: {error}", name)]) from None
    if not isinstance(found, dict | None):
        raise MetadataInvalid(
            f"{name} must be a JSON object; found {type(found).__name__}", [Fault("must be a JSON object", name)]
        )
    return found
