"""Log lines: one record to a line, with the id of the request they belong to, and without secrets or personal data."""

from __future__ import annotations

import json
import logging
import re
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

__all__ = ["JsonFormatter", "LineFormatter", "masked", "request_id"]

request_id: ContextVar[str | None] = ContextVar("penstock_request_id", default=None)

# What gives a right, wherever it stands.
_SECRETS = (
    (re.compile(r"\bpsk_[0-9a-f]{12}_[0-9a-f]{64}\b"), "psk_***"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',]+"), r"\1***"),
    (re.compile(r"(/api/signals/)[^/\s?\"']+"), r"\1***"),
    (re.compile(r"(?<=://)([^/?#@:\s]*):[^/?#@\s]*@"), r"\1:***@"),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]+\.[\w-]*"), "***"),
)
_EMAIL = re.compile(r"\b([\w.+-])[\w.+-]*@([\w-]+(?:\.[\w-]+)+)\b")
_NUMBER = re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def masked(text: str) -> str:
    """The text without keys, tokens, passwords, mail addresses, card and bank account numbers."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    text = _EMAIL.sub(r"\1***@\2", text)
    text = _IBAN.sub(lambda found: f"{found[0][:4]}***", text)
    return _NUMBER.sub(lambda found: "***" if _is_card(found[0]) else found[0], text)


def _is_card(text: str) -> bool:
    """Whether the digits have the check digit of cards (Luhn); of other long numbers one in ten has."""
    digits = [int(digit) for digit in text if digit.isdecimal()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _one_line(text: str) -> str:
    """Text whose control characters are spelled out: what a row or a caller sent cannot begin a line of its own."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class LineFormatter(logging.Formatter):
    """A line for people; traceback lines follow, indented."""

    def __init__(self, line: str, times: str | None = None) -> None:
        super().__init__(line, times)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the place that a step's record names, and the request's id."""
        record.message = _one_line(masked(record.message))
        text, fields = super().formatMessage(record), vars(record)
        if record.name.startswith("penstock.operations.") and "operation_id" in fields:
            row = f"row {fields['row_number']}, " if "row_number" in fields else ""
            text += f" [{row}step {fields.get('step_name')}, operation {fields['operation_id']}]"
        of = request_id.get()
        return f"{text} [request {of}]" if of else text

    def formatException(self, ei: Any) -> str:
        """The traceback; what its lines say is masked too."""
        text = super().formatException(ei)
        return "\n".join(f"  {_one_line(line)}" for line in masked(text).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object to a line: time, level, logger, message, the request's id, and what the record adds."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        added = {name: value for name, value in vars(record).items() if name not in _OWN and not name.startswith("_")}
        document: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            **added,
        }
        if (of := request_id.get()) is not None:
            document["request_id"] = of
        if record.exc_info:
            document["exception"] = masked(self.formatException(record.exc_info))
        return json.dumps(document, default=str, ensure_ascii=False)
