"""Which operations there are, what they take, and an empty file for each."""

from __future__ import annotations

import csv
import io
from typing import Annotated, Any

from fastapi import Query, Request, Response

from penstock.api.answers import JsonResponse, tagged
from penstock.api.described import problems, produces
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import OperationInfo
from penstock.pipeline import Definition
from penstock.resources import Document

__all__ = ["ROUTES", "operation_info"]

ROUTES = RouteTable("operations")

TEMPLATES = {"csv": ("text/csv; charset=utf-8", ","), "tsv": ("text/tab-separated-values; charset=utf-8", "\t")}


@ROUTES.get("/api/operations", role="read", response_model=list[OperationInfo])
async def list_operations(ask: Ask) -> Response:
    """The operations that files can be submitted to."""
    known = sorted(ask.penstock.definitions.values(), key=lambda definition: definition.name.casefold())
    return JsonResponse([operation_info(each) for each in known])


@ROUTES.get("/api/operations/{name}", role="read", response_model=OperationInfo)
async def get_operation(request: Request, ask: Ask, name: str) -> Response:
    """One operation."""
    return tagged(request, operation_info(ask.penstock.operations.definition(name)))


@ROUTES.get(
    "/api/operations/{name}/template",
    role="read",
    response_class=Response,
    responses=problems(422)
    | produces("text/csv", "text/tab-separated-values", description="A file with the header and no rows."),
)
async def get_template(
    ask: Ask, name: str, format: Annotated[str, Query(pattern="^(csv|tsv)$", description="csv or tsv")] = "csv"
) -> Response:
    """An empty file for an operation: its columns as a header line."""
    definition = ask.penstock.operations.definition(name)
    media_type, delimiter = TEMPLATES[format]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerow(_columns(definition))
    headers = {"content-disposition": f'attachment; filename="{_plain(definition.name)}-template.{format}"'}
    return Response(text.getvalue(), media_type=media_type, headers=headers)


def operation_info(definition: Definition) -> Document:
    """An operation as it is declared."""
    source = definition.source
    return {
        "name": definition.name,
        "description": definition.description,
        "isStepBased": isinstance(source, type),
        "metadataType": None if definition.meta.model is None else definition.meta.described,
        "rowType": getattr(definition.row.model, "__qualname__", str(definition.row.model)),
        "typeFullName": f"{getattr(source, '__module__', '')}.{getattr(source, '__qualname__', '')}",
        "metadataFields": [_field(field) for field in definition.meta.fields],
        "fileColumns": [_field(field) for field in definition.row.fields],
        "rowKey": definition.row_key,
        "tags": list(definition.options.tags),
        "steps": [{"name": step.name, "kind": step.kind} for step in definition.steps],
    }


def _field(field: Any) -> Document:
    annotation = field.annotation
    named = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    return {"name": field.inputs[0], "type": named, "required": field.is_required}


def _columns(definition: Definition) -> list[str]:
    return [field.inputs[0] for field in definition.row.fields]


def _plain(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)
