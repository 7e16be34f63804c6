"""Looking for bytes in bytes, alike on all three databases."""

from __future__ import annotations

import pytest
from sqlalchemy import literal, select

from penstock.db.database import Database
from penstock.db.dialects import place_of
from penstock.db.types import Bytes


@pytest.mark.parametrize(
    "part, whole, place",
    [
        (b"b", b"abc", 2),
        (b"abc", b"abc", 1),
        (b"c", b"abcabc", 3),
        (b"abcd", b"abc", 0),
        (b"x", b"", 0),
        (b"B", b"abc", 0),
        (b" ", b"a  ", 2),
        (b"\0", b"ab\0", 3),
        (b"\0\0\0", b"\0\0a\0\0\0", 4),
        (b"'\\%_", b"%_'\\'\\%_", 5),
        (b"\xe9", b"\xc3\xa9\xe9", 3),
        (b"\xff\xfe", b"\xff\xff\xfe", 2),
        (b"a", None, None),
    ],
)
async def test_the_place_of_bytes_is_counted_from_one_and_every_bit_counts(
    database: Database, part: bytes, whole: bytes | None, place: int | None
):
    query = select(place_of(literal(part, Bytes), literal(whole, Bytes)))
    async with database.read() as tx:
        assert (await tx.execute(query)).scalar() == place
