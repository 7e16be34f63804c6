"""When an operation has too many errors to go on."""

from __future__ import annotations

from penstock.pipeline import OperationOptions

__all__ = ["RATE_ROWS_MIN", "breach"]

RATE_ROWS_MIN = 100


def breach(options: OperationOptions, *, failed: int, processed: int) -> str | None:
    """Why an operation must stop, or None; while validating, every row read counts as processed."""
    if options.max_errors is not None and failed > options.max_errors:
        return f"{failed} rows failed, max_errors is {options.max_errors}"
    if options.max_error_rate is not None and processed >= RATE_ROWS_MIN:
        rate = failed / processed
        if rate > options.max_error_rate:
            return f"{failed} of {processed} rows failed ({rate:.1%}), max_error_rate is {options.max_error_rate:.1%}"
    return None
