"""Passing over rows without parsing them: whenever a reader says where they end, it is where parsing ends too."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Fault, FileRejected
from penstock.formats import Limits, Position, Reader, open_reader
from penstock.schema import Column, Schema

SCHEMA = Schema((Column("name", ("name",)), Column("note", ("note",), is_required=False)))
ROW_BYTES_MAX = 24
HEADERS = {"csv": b"name,note\n", "jsonl": b"\xef\xbb\xbf"}

plain_lines = {
    "csv": st.sampled_from([b"ana,1", b"bo,", b",", b" ", "zoë,日本".encode(), b"ragged", b"a,b,c"]),
    "jsonl": st.sampled_from([b"{}", b'{"name":"ana"}', '{"name":"日本"}'.encode(), b'{"name":', b"{\xff}", b"{ \0"]),
}
odd_lines = {
    "csv": [b"", b"a\rb,1", b"ana,1\r", b"\rbo", b'"a,\nb",1', b'b"o,2', b'"c"y,3', b"n\0ul,2", b"\xff,1", b"x" * 25],
    "jsonl": [b"", b" ", b"\t\r", b" {}", b"[1]", b"{}\r{}", b"7", b"\xff", b"{%25d}" % 1],
}
pieces = {
    "csv": [b"ana", b",", b" ", b'"', b"\n", b"\r\n", b"\r", "zoë".encode(), b"\xff", b"\xc3", b"\0", b"x" * 25],
    "jsonl": [b"{}", b"{", b'"', b" ", b"[1]", b"\n", b"\r\n", b"\r", "{日".encode(), b"\xff", b"\0", b"{%25d}" % 1],
}
line_ends = st.sampled_from([b"\n", b"\r\n"])


def texts(format: str) -> st.SearchStrategy[bytes]:
    """Files of which some have nothing but plain lines and others have anything, at their end too."""
    lines = st.tuples(plain_lines[format], line_ends).map(b"".join)
    odd = st.tuples(st.sampled_from(odd_lines[format]), line_ends).map(b"".join)
    rubble = st.lists(st.sampled_from(pieces[format]), max_size=4).map(b"".join)
    return st.one_of(*(st.lists(mix, max_size=12).map(b"".join) for mix in (lines, lines | odd, lines | rubble)))


def opened(content: bytes, format: str, **limits: int) -> Reader:
    limits = {"row_bytes_max": ROW_BYTES_MAX, **limits}
    return open_reader(io.BytesIO(content), format=format, schema=SCHEMA, limits=Limits(**limits))


Parsed = list[tuple[Position, Any, list[Fault]]]  # where a row ends, what it holds and what is wrong with it


def parsed(reader: Reader, start: Position | None = None, size: int = 1) -> tuple[Parsed, bool]:
    """The rows one by one, and whether the file was read to its end; what is refused further on refuses no row here."""
    rows: Parsed = []
    try:
        for batch in reader.batches(size, start):
            ends = [*[batch.start] * (len(batch.rows) - 1), batch.end]  # within a batch they are not told
            rows += [(ends[i], row, batch.faults.get(i, [])) for i, row in enumerate(batch.rows)]
    except FileRejected:
        return rows, False
    return rows, True


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@given(data=st.data())
def test_rows_are_passed_over_to_where_parsing_them_ends(format: str, data: st.DataObject):
    content = HEADERS[format] + data.draw(texts(format), "text")
    rows, is_whole = parsed(opened(content, format, block_bytes=1))
    before = data.draw(st.integers(0, len(rows)), "rows before")
    count = data.draw(st.integers(1, 8), "count")
    block_bytes = data.draw(st.sampled_from([1, 2, 3, 7, 16, 4096]), "block")
    batch_bytes_max = data.draw(st.sampled_from([64, 4096]), "batch")
    try:
        reader = opened(content, format, block_bytes=block_bytes, batch_bytes_max=batch_bytes_max)
    except FileRejected:  # for what stands in the same block as the header
        assert not is_whole
        return
    end = reader.skip(count, rows[before - 1][0] if before else None)
    if end is None:
        return
    assert before + count <= len(rows)
    assert end == rows[before + count - 1][0]
    assert parsed(opened(content, format, block_bytes=1), end)[0] == rows[before + count :]
    if is_whole:
        follow, is_followed = parsed(reader, end, size=3)
        rest = [row[1:] for row in rows[before + count :]]
        # A record that is longer than a whole batch may be ends the reading.
        assert [row[1:] for row in follow] == (rest if is_followed else rest[: len(follow)])
        assert is_followed or len(content) > batch_bytes_max


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@given(data=st.data())
def test_plain_lines_are_always_passed_over_as_far_as_there_are_any(format: str, data: st.DataObject):
    lines = data.draw(st.lists(plain_lines[format], min_size=1, max_size=12))
    end_of_line = data.draw(line_ends)
    content = HEADERS[format] + b"".join(line + end_of_line for line in lines)
    reader = opened(content, format, block_bytes=data.draw(st.sampled_from([1, 5, 4096])))
    for count in range(1, len(lines) + 1):
        end = reader.skip(count)
        assert end is not None
        assert end.row == count + 1
        assert reader.skip(len(lines) - count + 1, end) is None
    assert reader.skip(len(lines)) == Position(len(content), len(lines) + 1)


@pytest.mark.parametrize("end_of_line", ["\n", "\r\n"])
def test_a_plain_csv_file_is_passed_over(end_of_line: str):
    content = end_of_line.join(["name,note", "ana,1", "bö,2", "cy,3", ""]).encode()
    reader = opened(content, "csv")
    first = reader.skip(2)
    assert first == Position(content.index(b"cy"), 3)
    assert reader.skip(1, first) == Position(len(content), 4)


def test_the_rows_of_a_file_with_a_byte_order_mark_and_a_long_header_are_passed_over():
    content = b'\xef\xbb\xbfsep=;\n\n"name";"no\nte"\nana;1\nbo;2\n'
    assert opened(content, "csv").skip(1) == Position(content.index(b"bo"), 2)


@pytest.mark.parametrize("end_of_line", [b"\n", b"\r\n"])
def test_plain_json_lines_are_passed_over(end_of_line: bytes):
    content = end_of_line.join([b'{"name": "ana"}', b'{"name": "bo"}', b'{"name": "cy"}', b""])
    assert opened(content, "jsonl").skip(2) == Position(content.index(b'{"name": "cy"}'), 3)


def test_a_row_that_is_faulty_in_itself_is_a_row_to_be_passed_over():
    csv = b"name,note\nana\nbo,2,3\n"
    assert opened(csv, "csv").skip(2) == Position(len(csv), 3)
    json = b'{"name": \xff}\n{"na\n{"name": "\\u0000"}\n'
    assert opened(json, "jsonl").skip(3) == Position(len(json), 4)


@pytest.mark.parametrize("block_bytes", [1, 8, 16])
@pytest.mark.parametrize(
    "rows",
    [
        b'ana,1\n"bo",2\ncy,3\n',
        b'ana,1\nbo"bo,2\ncy,3\n',
        b"ana,1\n\nbo,2\ncy,3\n",
        b"ana,1\r\n\r\nbo,2\ncy,3\n",
        b"\nana,1\nbo,2\ncy,3\n",
        b"\r\nana,1\nbo,2\ncy,3\n",
        b"ana,1\rbo,2\ncy,3\n",
        b"ana,1\r\r\nbo,2\ncy,3\n",
        b"ana,1\nb\xff,2\ncy,3\n",
        b"ana,1\nb\xc3\n\xa9,2\ncy,3\n",
        b"ana,1\nbo,2\n",
        b"ana,1\nbo,2\ncy,3",
        b"",
        b"ana,1\n" + b"b" * (ROW_BYTES_MAX + 1) + b"\ncy,3\n",
    ],
    ids=[
        "a quoted cell",
        "a quote",
        "a blank line",
        "a blank line with CRLF",
        "a blank line at the start",
        "a blank line with CRLF at the start",
        "a lone CR",
        "a CR before CRLF",
        "not UTF-8",
        "a character that is cut in two",
        "fewer rows",
        "no newline at the end",
        "no rows",
        "a row that is too long",
    ],
)
def test_rows_of_csv_that_must_be_looked_at_are_not_passed_over(rows: bytes, block_bytes: int):
    assert opened(HEADERS["csv"] + rows, "csv", block_bytes=block_bytes).skip(3) is None


@pytest.mark.parametrize("block_bytes", [1, 8, 4096])
@pytest.mark.parametrize(
    "rows",
    [
        b"{}\n\n{}\n{}\n",
        b"\n{}\n{}\n{}\n",
        b"{}\r\n\r\n{}\n{}\n",
        b"{}\n \n{}\n{}\n",
        b"{}\n {}\n{}\n",
        b"{}\n[1]\n{}\n",
        b"{}\n{}\n",
        b"{}\n{}\n{}",
        b"",
        b"{}\n{" + b" " * ROW_BYTES_MAX + b"}\n{}\n",
    ],
    ids=[
        "a blank line",
        "a blank line at the start",
        "a blank line with CRLF",
        "a line of space",
        "an indented line",
        "a line that is no object",
        "fewer rows",
        "no newline at the end",
        "no rows",
        "a row that is too long",
    ],
)
def test_json_lines_that_must_be_looked_at_are_not_passed_over(rows: bytes, block_bytes: int):
    assert opened(rows, "jsonl", block_bytes=block_bytes).skip(3) is None


def test_what_comes_behind_the_rows_does_not_matter():
    content = b'name,note\nana,1\nbo,2\n\n"cy\r'
    assert opened(content, "csv").skip(2) == Position(content.index(b"\n\n") + 1, 3)


def test_more_than_a_batch_may_hold_is_not_passed_over():
    content = HEADERS["csv"] + b"ana,1\n" * 100
    reader = opened(content, "csv", batch_bytes_max=64, block_bytes=16)
    assert reader.skip(100) is None
    assert reader.skip(5) == Position(len(HEADERS["csv"]) + 30, 6)


def test_a_file_without_a_header_has_no_rows_to_be_passed_over():
    assert opened(b"\n\n", "csv").skip(1) is None


def test_only_parsing_shows_where_an_element_of_a_json_array_ends():
    reader = opened(b'[\n{"name": "ana"},\n{"name": "bo"}\n]\n', "json")
    assert reader.skip(1) is None
    (batch,) = reader.batches(2)
    assert reader.skip(1, batch.start) is None
