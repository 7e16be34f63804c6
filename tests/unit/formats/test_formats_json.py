"""JSON arrays and JSON Lines: a bad line is one bad row, a bad array is a bad file, and nothing changes silently."""

from __future__ import annotations

import io
import itertools
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Fault, FileRejected
from penstock.formats import Batch, Limits, Position, Reader, open_reader
from penstock.schema import Schema

ANY = Schema(())
FORMATS = ("json", "jsonl")


def opened(content: str | bytes, format: str, **limits: int) -> Reader:
    data = content if isinstance(content, bytes) else content.encode()
    return open_reader(io.BytesIO(data), format=format, schema=ANY, limits=Limits(**limits))


def everything(reader: Reader, size: int = 1000, start: Position | None = None) -> Batch:
    """All batches as one, after checking that they fit together without a gap."""
    batches = list(reader.batches(size, start))
    if not batches:
        return Batch(Position(0, 1), Position(0, 1), [])
    for before, after in itertools.pairwise(batches):
        assert before.end == after.start
    first = batches[0].start
    whole = Batch(first, batches[-1].end, [])
    for batch in batches:
        assert len(batch.rows) == batch.end.row - batch.start.row <= size
        whole.faults |= {batch.start.row - first.row + index: faults for index, faults in batch.faults.items()}
        whole.rows += batch.rows
    return whole


def read(content: str | bytes, format: str, size: int = 1000, **limits: int) -> Batch:
    return everything(opened(content, format, **limits), size)


def lay_out(elements: list[str], format: str) -> str:
    return "[" + ",\n ".join(elements) + "]" if format == "json" else "\n".join(elements) + "\n"


def refusal(content: str | bytes, **limits: int) -> FileRejected:
    with pytest.raises(FileRejected) as caught:
        read(content, "json", **limits)
    return caught.value


# Both formats


@pytest.mark.parametrize("format", FORMATS)
def test_objects_become_rows_in_batches_numbered_from_one(format):
    first, second = opened(lay_out(['{"a": 1}', '{"a": [2]}', '{"b": {"c": null}}'], format), format).batches(2)
    assert (first.start.row, first.end.row, first.rows) == (1, 3, [{"a": 1}, {"a": [2]}])
    assert (second.start, second.end.row, second.rows) == (first.end, 4, [{"b": {"c": None}}])


@pytest.mark.parametrize("format", FORMATS)
def test_rows_carry_their_own_names(format):
    assert opened(lay_out(['{"a": 1}'], format), format).columns is None


@pytest.mark.covers("SM-016")
@pytest.mark.parametrize(
    ("content", "format"),
    [
        (b"", "json"),
        (b" \n", "json"),
        (b"[]", "json"),
        (b"\xef\xbb\xbf [ \n] \n", "json"),
        (b"", "jsonl"),
        (b"\xef\xbb\xbf", "jsonl"),
        (b"\n \r\n\n", "jsonl"),
    ],
)
def test_a_file_without_rows_gives_no_batches(content, format):
    assert list(opened(content, format).batches(10)) == []


FAULTY = {
    "not an object: number": ("12", "is a number, not an object"),
    "not an object: string": ('"x"', "is a string, not an object"),
    "not an object: array": ("[1]", "is an array, not an object"),
    "not an object: null": ("null", "is null, not an object"),
    "not an object: boolean": ("true", "is a boolean, not an object"),
    "NaN": ('{"a": NaN}', "contains NaN, which is not JSON"),
    "infinity": ('{"a": [-Infinity]}', "contains -Infinity, which is not JSON"),
    "overflow": ('{"a": -1e400}', "contains -1e400, a number too large to be held"),
    "digits": ('{"a": ' + "9" * 5000 + "}", "contains a number of 5,000 digits"),
    "half a surrogate pair": ('{"a": "\\ud83d"}', "contains half of a surrogate pair, which is no character"),
    "half a surrogate pair in a key": ('{"\\uDE00": 1}', "contains half of a surrogate pair, which is no character"),
    "NUL": ('{"a": "x\\u0000y"}', "contains a NUL character"),
    "depth": ('{"a": ' + "[" * 100 + "]" * 100 + "}", "is nested more than 100 levels deep"),
    "great depth": ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested more than 100 levels deep"),
}


@pytest.mark.covers("J01", "J02", "J04", "J05", "J06", "J07")
@pytest.mark.parametrize("block_bytes", [7, 2**18])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", FAULTY)
def test_what_a_lenient_decoder_would_change_is_the_fault_of_its_row(kind, format, block_bytes):
    element, message = FAULTY[kind]
    if len(element) > 10_000:
        block_bytes *= 1000
    whole = read(lay_out(['{"a": 1}', element, '{"a": 2}'], format), format, block_bytes=block_bytes)
    assert whole.rows == [{"a": 1}, element, {"a": 2}]
    assert whole.faults == {1: [Fault(message)]}


@pytest.mark.parametrize("format", FORMATS)
def test_every_fault_of_a_row_is_reported_at_once(format):
    whole = read(lay_out(['{"a": NaN, "b": 1e999, "c": "\\u0000"}'], format), format)
    assert len(whole.faults[0]) == 3


def test_a_row_with_countless_faults_names_a_few_of_them():
    members = ", ".join(f'"k{number}": 1, "k{number}": 2' for number in range(1000))
    assert len(read("{" + members + "}", "jsonl").faults[0]) == 20


def test_the_name_of_a_repeated_key_can_be_stored_anywhere():
    whole = read('{"\\ud800\\u0000": 1, "\\ud800\\u0000": 2}', "jsonl")
    assert whole.faults[0][-1] == Fault("appears twice in one object", r"\ud800\x00")


@pytest.mark.parametrize("format", FORMATS)
def test_a_depth_limit_above_the_interpreters_own_is_no_way_out(format):
    element = '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"
    whole = read(lay_out(['{"a": 1}', element], format), format, json_depth_max=100_000)
    assert list(whole.faults) == [1]


GOOD = {
    "colons and braces in text": '{"a": "x\\": {[", "b:": ":,]}"}',
    "white space before colons": '{"a"  : 1, "b"\t: 2}',
    "an escaped backslash before u0000": '{"a": "\\\\u0000"}',
    "a surrogate pair": '{"a": "\\ud83d\\ude00"}',
    "escaped letters": '{"a": "\\u00e9\\n"}',
    "equal keys in different objects": '{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}',
    "wide numbers": '{"a": 18446744073709551617, "b": -0.0, "c": 1e308, "d": 1E-400}',
    "99 levels below the row": '{"a": ' + "[" * 99 + "]" * 99 + "}",
    "many small arrays": json.dumps({f"k{n}": [] for n in range(300)}),
    "hostile names": '{"__class__": 1, "$ref": 2, "": 3, "__proto__": {}}',
    "nothing": "{}",
}


@pytest.mark.covers("J19", "J20")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", GOOD)
def test_what_only_looks_suspicious_is_accepted_exactly(kind, format):
    whole = read(lay_out(['{"a": 1}', GOOD[kind], '{"a": 2}'], format), format, block_bytes=64)
    assert (whole.rows, whole.faults) == ([{"a": 1}, json.loads(GOOD[kind]), {"a": 2}], {})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("block_bytes", [7, 2**18])
def test_a_row_that_is_too_large_is_faulty_alone_and_kept_in_part(format, block_bytes):
    big = json.dumps({"a": "é}]\\" * 50}, ensure_ascii=False)
    whole = read(lay_out(['{"a": 1}', big, '{"a": 2}'], format), format, row_bytes_max=100, block_bytes=block_bytes)
    assert [whole.rows[0], whole.rows[2]] == [{"a": 1}, {"a": 2}]
    assert whole.faults == {1: [Fault("is larger than 100 bytes")]}
    assert isinstance(whole.rows[1], str)
    assert big.startswith(whole.rows[1].rstrip("\ufffd"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_batch_ends_early_when_it_holds_many_bytes(format):
    reader = opened(lay_out(['{"a": "xxxxxxxxxx"}'] * 100, format), format, batch_bytes_max=100, block_bytes=16)
    assert max(len(batch.rows) for batch in reader.batches(1000)) < 10
    assert len(everything(reader).rows) == 100


class Generated(io.RawIOBase):
    """A file made of a beginning, a filler repeated to a great length, and an end."""

    def __init__(self, beginning: bytes, filler: bytes, size: int, end: bytes) -> None:
        self.parts, self.filler, self.size, self.at = (beginning, end), filler, size, 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.at = offset
        return offset

    def read(self, count: int = -1, /) -> bytes:
        beginning, end = self.parts
        data = beginning[self.at : self.at + count]
        filled = self.at + len(data) - len(beginning)
        data += self.filler * max(0, min(count - len(data), self.size - filled))
        behind = self.at + len(data) - len(beginning) - self.size
        if behind >= 0:
            data += end[behind : behind + count - len(data)]
        self.at += len(data)
        return data


@contextmanager
def memory_below(peak_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak_max
    finally:
        tracemalloc.stop()


def huge(format: str, beginning: bytes, filler: bytes, end: bytes) -> Reader:
    source: Any = Generated(beginning, filler, size=30_000_000, end=end)
    return open_reader(source, format=format, schema=ANY, limits=Limits(row_bytes_max=2**18, block_bytes=2**16))


@pytest.mark.covers("J13")
@pytest.mark.parametrize(
    ("format", "beginning", "filler", "end"),
    [
        ("json", b'[{"a": 1}, {"a": "', b"x", b'"}, {"a": 2}]'),
        ("json", b'[{"a": 1}, {"a": ', b" ", b'3}, {"a": 2}]'),
        ("jsonl", b'{"a": 1}\n{"a": "', b"x", b'"}\n{"a": 2}\n'),
        ("jsonl", b'{"a": 1}\n{"a": ', b"[", b'\n{"a": 2}\n'),
    ],
)
def test_a_huge_row_is_passed_over_in_bounded_memory(format, beginning, filler, end):
    with memory_below(6_000_000):
        whole = everything(huge(format, beginning, filler, end))
    assert [whole.rows[0], whole.rows[2]] == [{"a": 1}, {"a": 2}]
    assert whole.faults == {1: [Fault("is larger than 262,144 bytes")]}


def test_white_space_of_any_length_is_passed_over_in_bounded_memory():
    with memory_below(6_000_000):
        assert everything(huge("json", b'[{"a": 1},', b" ", b'{"a": 2}]')).rows == [{"a": 1}, {"a": 2}]


def test_an_element_that_never_ends_is_refused_in_bounded_memory():
    with memory_below(6_000_000), pytest.raises(FileRejected, match="row 2, offset 30000017: the file ends inside"):
        everything(huge("json", b'[{"a": 1}, {"a": ', b"[", b""))


# Arrays


@pytest.mark.covers("J03")
@pytest.mark.parametrize(
    "element", ['{"a": 1, "a": 1}', '{"a": [{"b": 1, "c": 2, "b" : 3}]}', '{"a": 1, "\\u0061": 2}']
)
def test_a_key_that_appears_twice_refuses_the_array(element):
    error = refusal(lay_out(['{"a": 1}', element], "json"))
    assert error.code == "json"
    assert str(error).startswith("row 2, offset 12: a key appears twice")


MALFORMED = {
    "truncated in an element": ('[{"a": 1}, {"a"', 2),
    "truncated in a string": ('[{"a": 1}, {"a": "x', 2),
    "truncated behind an element": ('[{"a": 1}', 2),
    "truncated behind a comma": ('[{"a": 1},', 2),
    "truncated at once": ("[", 1),
    "trailing garbage": ('[{"a": 1}] x', 2),
    "two arrays": ('[{"a": 1}][]', 2),
    "a comment between": ('[{"a": 1}, // no\n {"a": 2}]', 2),
    "a comment inside": ('[{"a": 1 /* no */}]', 1),
    "single quotes": ("[{'a': 1}]", 1),
    "a comma too many": ('[{"a": 1},]', 2),
    "a comma at the start": ('[,{"a": 1}]', 1),
    "two commas": ('[{"a": 1},,{"a": 2}]', 2),
    "a missing comma": ('[{"a": 1} {"a": 2}]', 2),
    "a wrong bracket": ('[{"a": [1}]', 1),
    "an unknown word": ('[{"a": 1}, undefined]', 2),
    "a leading zero": ('[{"a": 01}]', 1),
    "a raw line break in a string": ('[{"a": "x\ny"}]', 1),
    "a raw NUL": ('[{"a": 1},\0{"a": 2}]', 2),
}


@pytest.mark.covers("J08", "J09", "J10")
@pytest.mark.parametrize("block_bytes", [7, 2**18])
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_array_is_refused_with_the_row_and_the_offset(kind, block_bytes):
    content, row = MALFORMED[kind]
    error = refusal(content, block_bytes=block_bytes)
    assert error.code == "json"
    assert str(error).startswith(f"row {row}, offset ")


def test_the_offset_of_a_malformed_element_is_in_bytes_of_the_file():
    assert str(refusal('[{"é": 1}, {"a": x}]')).startswith("row 2, offset 18: this is not JSON")


@pytest.mark.covers("J11")
@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"a": 1}', "an object"),
        ("12", "a number"),
        ('"x"', "a string"),
        ("true", "a boolean"),
        ("null", "null"),
        ("hello", "'h'"),
    ],
)
def test_a_file_that_is_no_array_is_refused_by_what_it_is(content, found):
    error = refusal(content)
    assert (error.code, f"begins with {found};" in str(error)) == ("json", True)


def test_a_byte_that_is_not_utf8_refuses_the_array_and_names_its_row():
    for block_bytes in (7, 2**18):
        error = refusal(b'[{"a": 1}, {"a": "\xc3\xa9"}, {"a": "\xe9"}]', block_bytes=block_bytes)
        assert error.code == "encoding"
        assert "byte 0xE9 at offset 31 (row 3)" in str(error)


# JSON Lines


@pytest.mark.covers("J15")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": 1', "is not JSON: Expecting ',' delimiter at character 8"),
        (b'{"a": 1} x', "is not JSON: Extra data at character 10"),
        (b"{'a': 1}", "is not JSON: Expecting property name enclosed in double quotes at character 2"),
        (b'{"a": "\xe9"}', "byte 0xE9 at byte 8 of the line is not UTF-8"),
        (b'{"a": "\0"}', "is not JSON: Invalid control character at at character 8"),
    ],
)
def test_a_bad_line_is_the_fault_of_its_row(line, message):
    whole = read(b'{"a": 1}\n' + line + b'\n{"a": 2}', "jsonl")
    assert [whole.rows[0], whole.rows[2]] == [{"a": 1}, {"a": 2}]
    assert [str(fault) for fault in whole.faults.pop(1)] == [message]
    assert not whole.faults


@pytest.mark.covers("J03")
def test_a_key_that_appears_twice_is_the_fault_of_its_line():
    whole = read('{"a": 1, "a": 2}\n{"a": 1}\n', "jsonl")
    assert whole.faults == {0: [Fault("appears twice in one object", "a")]}


@pytest.mark.covers("J16")
def test_blank_lines_and_crlf_are_fine_between_lines():
    assert read('\n{"a": 1}\r\n\r\n  \n{"a": 2}\r\n\n{"a": 3}', "jsonl").rows == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_blank_lines_leave_batches_full():
    reader = opened('{"a": 1}\n\n\n{"a": 2}\n\n{"a": 3}\n', "jsonl")
    assert [len(batch.rows) for batch in reader.batches(2)] == [2, 1]


# Properties

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
TABLES = st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=10)


def written(rows: list[Any], format: str, *, is_ascii: bool, separators: tuple[str, str], line_end: str) -> bytes:
    texts = [json.dumps(row, ensure_ascii=is_ascii, separators=separators) for row in rows]
    body = line_end.join(texts) if format == "jsonl" else f"[{line_end}" + f",{line_end}".join(texts) + f"{line_end}]"
    return body.encode()


LAYOUTS = st.fixed_dictionaries(
    {
        "is_ascii": st.booleans(),
        "separators": st.sampled_from([(", ", ": "), (",", ":"), (" ,", " :"), ("\t,", "\t:\t")]),
        "line_end": st.sampled_from(["\n", "\r\n", "\n\n"]),
    }
)


@given(TABLES, LAYOUTS, st.integers(1, 5), st.sampled_from([1, 7, 64, 2**18]), st.sampled_from(FORMATS))
def test_every_batch_size_and_block_size_yields_exactly_the_rows(rows, layout, size, block_bytes, format):
    whole = read(written(rows, format, **layout), format, size, block_bytes=block_bytes)
    assert (whole.rows, whole.faults) == (rows, {})


@given(TABLES, LAYOUTS, st.integers(1, 5), st.sampled_from(FORMATS))
def test_reading_resumes_at_every_batch_end_with_exactly_the_rest(rows, layout, size, format):
    reader = opened(written(rows, format, **layout), format, block_bytes=7)
    for batch in list(reader.batches(size)):
        rest = everything(reader, size, Position.parse(str(batch.end)))
        assert rest.rows == rows[batch.end.row - 1 :]
        assert next(reader.batches(size, batch.start)).rows == batch.rows


PIECES = st.sampled_from(['{"a":1}', "{}", ",", "[", "]", "{", "}", '"', "\\", ":", "1", " ", "\n", "NaN", "é", '"a"'])


@given(st.lists(PIECES, max_size=15), st.integers(1, 4), st.sampled_from([1, 7]), st.sampled_from(FORMATS))
def test_any_text_is_read_alike_whatever_the_sizes(pieces, size, block_bytes, format):
    content = ("[" if format == "json" else "") + "".join(pieces)

    def outcome(size: int, block_bytes: int) -> Any:
        try:
            whole = read(content, format, size, block_bytes=block_bytes)
        except FileRejected as error:
            return str(error)
        return whole.rows, whole.faults

    assert outcome(size, block_bytes) == outcome(1000, 2**18)


def strictly(text: str) -> Any:
    """What the standard decoder says when told to refuse repeated keys and NaN."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("repeated")
        return dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)


def members(depth: int = 2) -> st.SearchStrategy[str]:
    keys = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"a:"', '"\\":"'])
    values: st.SearchStrategy[str] = st.sampled_from(["1", '"x"', '"a\\":1"', '" :"', "[]", "{}"])
    if depth:
        values |= members(depth - 1)
    pairs = st.tuples(keys, st.sampled_from([":", " :", ": ", "\t:"]), values).map("".join)
    return st.lists(pairs, max_size=3).map(lambda each: "{" + ",".join(each) + "}")


@given(st.lists(members(), min_size=1, max_size=4))
def test_repeated_keys_are_found_exactly_where_a_strict_decoder_finds_them(lines):
    def expected() -> Iterator[int]:
        for index, line in enumerate(lines):
            try:
                strictly(line)
            except ValueError:
                yield index

    assert list(read("\n".join(lines), "jsonl").faults) == list(expected())
