"""The base class of operations with several steps."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from penstock.pipeline.definition import Definition, definition_of

__all__ = ["Pipeline"]

RowT = TypeVar("RowT")
MetaT = TypeVar("MetaT", default=None)


class Pipeline(Generic[RowT, MetaT]):
    """The base of an operation with several steps: `Pipeline[Row]`, or `Pipeline[Row, Metadata]`.

    It is built once per worker process and shared by all rows, so it keeps no state of a row.
    """

    @classmethod
    def lifespan(cls) -> AbstractAsyncContextManager[Self]:
        """Build the pipeline and what it needs; override this when `__init__` takes clients."""
        return nullcontext(cls())

    def validate_metadata(self, metadata: MetaT, /) -> Awaitable[None] | None:
        """Refuse metadata by raising ValueError; it runs before anything is stored."""
        return None

    def validate_row(self, row: RowT, metadata: MetaT, /) -> Awaitable[None] | None:
        """Refuse a row by raising RowInvalid or ValueError; it runs after the model and the validators."""
        return None

    @classmethod
    def with_options(cls, **overrides: Any) -> Definition:
        """This operation with other options: `with_options(max_errors=5, steps={"book": {"retries": 3}})`."""
        return definition_of(cls).with_overrides(overrides)
