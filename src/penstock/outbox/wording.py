"""An event in a sentence, for chats and e-mails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["details", "sentence", "slack_text"]

COUNTS = ("totalRows", "successfulRows", "failedRows", "invalidRows", "cancelledRows")
CHARS_MAX = 500


def sentence(document: Mapping[str, Any]) -> str:
    """What happened, in one line."""
    data = document["data"]
    what = document["type"].split(".")[1]
    name = f"{data['name']} " if data.get("name") else ""
    if "status" not in data:
        return f"{what} {name}{document['subject']}: {document['type']}"
    cause = f" ({data['cause']})" if data.get("cause") else ""
    line = f"{what} {name}{document['subject']}: {data['status']}{cause}"
    line = " ".join(line.split())
    return line if len(line) <= CHARS_MAX else f"{line[:CHARS_MAX]}…"


def slack_text(document: Mapping[str, Any]) -> str:
    """The same as Slack takes it: what is between angle brackets would address people."""
    return sentence(document).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def details(document: Mapping[str, Any]) -> str:
    """The same with what is known beside it, a line for each."""
    data = document["data"]
    lines = [("Event", document["type"]), ("Time", document["time"]), ("By", data.get("actor"))]
    lines += [(name, f"{data[name]:,}") for name in COUNTS if isinstance(data.get(name), int)]
    lines.append(("Event id", document["id"]))
    return "\n".join([sentence(document), "", *(f"{name}: {value}" for name, value in lines if value is not None)])
