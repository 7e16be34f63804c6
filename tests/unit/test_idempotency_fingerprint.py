"""Two requests have one fingerprint exactly when they ask for the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.idempotency.fingerprint import Fingerprint


def taken(
    *pieces: bytes,
    method: str = "POST",
    path: str = "/orders",
    query: bytes = b"",
    content_type: bytes = b"application/json",
) -> str:
    fingerprint = Fingerprint(method, path, query, content_type)
    for piece in pieces:
        fingerprint.add(piece)
    return fingerprint.end()


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    "other",
    [
        {"method": "PATCH"},
        {"path": "/orders/1"},
        {"query": b"dry=1"},
        {"content_type": b"text/plain"},
    ],
)
def test_every_part_of_a_request_counts(other: dict[str, Any]):
    assert taken(b"{}") != taken(b"{}", **other)


def test_the_last_byte_of_a_long_body_counts():
    body = b"x" * 5_000_000
    assert taken(body) != taken(body[:-1] + b"y")


def test_the_order_of_parameters_does_not_count_but_that_of_one_names_values_does():
    assert taken(query=b"a=1&b=2") == taken(query=b"b=2&a=1") == taken(query=b"&b=2&&a=1")
    assert taken(query=b"a=1&a=2") != taken(query=b"a=2&a=1")
    assert taken(query=b"a=1&b=2") != taken(query=b"a=1%26b=2")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_it_does_not_count_in_which_pieces_a_body_comes(body: bytes, places: list[int]):
    assert taken(*cut(body, places)) == taken(body)


def form(boundary: bytes, *parts: bytes) -> bytes:
    lines = b"".join(
        b"--" + boundary + b"\r\nContent-Disposition: form-data\r\n\r\n" + part + b"\r\n" for part in parts
    )
    return lines + b"--" + boundary + b"--\r\n"


def multipart(boundary: bytes, *parts: bytes, places: Sequence[int] = ()) -> str:
    kind = b'multipart/form-data; boundary="' + boundary + b'"'
    return taken(*cut(form(boundary, *parts), places), content_type=kind)


PARTS = st.lists(st.binary(max_size=80), max_size=4)


@given(PARTS, st.lists(st.integers(0, 600), max_size=8))
def test_the_boundary_that_a_client_made_up_does_not_count(parts: list[bytes], places: list[int]):
    assert multipart(b"first-of-many", *parts) == multipart(b"x9", *parts, places=places)


@given(PARTS, PARTS)
def test_forms_of_different_parts_differ(parts: list[bytes], others: list[bytes]):
    assert (multipart(b"a1b2c3", *parts) == multipart(b"d4e5f6", *others)) == (parts == others)


def test_a_boundary_is_found_with_and_without_quotes_and_one_too_long_is_not_taken():
    bare = taken(form(b"abc", b"1"), content_type=b"multipart/form-data; boundary=abc")
    assert bare == multipart(b"abc", b"1")
    long = b"b" * 300
    assert taken(form(long, b"1"), content_type=b"multipart/form-data; boundary=" + long) != bare


def test_text_that_looks_like_a_boundary_inside_a_line_belongs_to_its_part():
    assert multipart(b"A", b"see --A here") != multipart(b"B", b"see --B here")
