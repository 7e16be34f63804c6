"""CSV files: what is a record, what is a fault of one, and what makes the whole file unusable."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Fault, FileRejected
from penstock.formats import Batch, Limits, Position, Reader, format_of, open_reader
from penstock.schema import Column, Schema

NAME_AGE = Schema((Column("name", ("name", "Full Name")), Column("age", ("age",), is_required=False)))
STRICT = Schema(NAME_AGE.columns, allows_extra=False)


def opened(content: str | bytes, schema: Schema = NAME_AGE, **limits: int) -> Reader:
    data = content if isinstance(content, bytes) else content.encode()
    return open_reader(io.BytesIO(data), format="csv", schema=schema, limits=Limits(**limits))


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


def read(content: str | bytes, schema: Schema = NAME_AGE, size: int = 1000, **limits: int) -> Batch:
    return everything(opened(content, schema, **limits), size)


def refusal(content: str | bytes, schema: Schema = NAME_AGE, **limits: int) -> FileRejected:
    with pytest.raises(FileRejected) as caught:
        read(content, schema, **limits)
    return caught.value


# Which format


@pytest.mark.parametrize(
    ("name", "format"),
    [("a.csv", "csv"), ("A.TSV", "csv"), ("x/y.json", "json"), ("b.jsonl", "jsonl"), ("b.NDJSON", "jsonl")],
)
def test_the_extension_decides_the_format(name, format):
    assert format_of(name) == format


@pytest.mark.parametrize("name", ["devices.xml", "devices", ".csv"])
def test_an_unknown_extension_is_refused_with_the_known_ones(name):
    with pytest.raises(FileRejected, match=r"known: \.csv, \.tsv, \.json, \.jsonl, \.ndjson") as caught:
        format_of(name)
    assert caught.value.code == "unknown_format"


def test_a_position_survives_its_text_form():
    assert Position.parse(str(Position(offset=1234, row=56))) == Position(1234, 56)


# Records


def test_rows_come_in_batches_numbered_from_one():
    first, second = opened("name,age\nana,1\nbo,2\ncy,3\n").batches(2)
    assert (first.start.row, first.end.row, first.rows) == (1, 3, [["ana", "1"], ["bo", "2"]])
    assert (second.start, second.end.row, second.rows) == (first.end, 4, [["cy", "3"]])


def test_a_batch_ends_where_the_next_record_begins_in_bytes():
    content = "name,age\näna,1\n\nbo,2\n".encode()
    first = next(opened(content).batches(1))
    assert content[first.end.offset :] == b"\nbo,2\n"


@pytest.mark.covers("C15")
def test_line_ends_may_be_mixed():
    assert read("name,age\rana,1\r\nbo,2\ncy,3\rdi,4").rows == [["ana", "1"], ["bo", "2"], ["cy", "3"], ["di", "4"]]


def test_a_lone_cr_in_the_middle_of_a_file_ends_a_record_there_too():
    content = "name,age\n" + "ana,1\n" * 50 + "bo,2\rcy,3\n" + '"di"x,4\rey,5\n'
    whole = read(content, size=20)
    assert whole.rows[50:] == [["bo", "2"], ["cy", "3"], '"di"x,4', ["ey", "5"]]
    assert list(whole.faults) == [52]


@pytest.mark.covers("C16")
def test_blank_lines_are_no_records():
    whole = read("\n\nname,age\n\n\nana,1\n\r\n\nbo,2\n\n\n")
    assert whole.rows == [["ana", "1"], ["bo", "2"]]
    assert whole.end.row == 3


def test_more_blank_lines_than_a_batch_may_hold_are_skipped():
    assert read("name,age\n" + "\n" * 5000 + "ana,1\n", batch_bytes_max=64, block_bytes=16).rows == [["ana", "1"]]


@pytest.mark.covers("C22", "C21")
def test_quoted_cells_hold_delimiters_newlines_and_doubled_quotes():
    assert read('name,age\n"a,b\nc\r\nd ""e""",1\n').rows == [['a,b\nc\r\nd "e"', "1"]]


@pytest.mark.covers("C17", "C18")
def test_a_record_with_a_wrong_number_of_cells_is_faulty_alone():
    whole = read("name,age\nana,1\nbo\ncy,3,x\ndi,4\n")
    assert whole.rows == [["ana", "1"], ["bo"], ["cy", "3", "x"], ["di", "4"]]
    assert whole.faults == {1: [Fault("has 1 cell, the header has 2")], 2: [Fault("has 3 cells, the header has 2")]}


@pytest.mark.covers("C10")
def test_a_nul_is_the_fault_of_its_row_and_names_the_column():
    whole = read("name,age\nana,1\nb\0o,2\ncy,3\0\n")
    assert whole.faults == {
        1: [Fault("contains a NUL character", "name")],
        2: [Fault("contains a NUL character", "age")],
    }


def test_a_nul_is_seen_even_when_the_reading_had_to_start_again():
    assert list(read("name,age\nb\0o,2\ncy,3\rdi,4\n").faults) == [0]


def test_text_behind_a_closing_quote_is_the_fault_of_its_row():
    whole = read('name,age\nana,1\n"bo"x,2\ncy,3\n')
    assert whole.rows == [["ana", "1"], '"bo"x,2', ["cy", "3"]]
    assert [str(fault) for fault in whole.faults[1]] == [
        "text follows a closing quote; double the quotes that belong to the text"
    ]


def test_a_missing_closing_quote_that_swallowed_lines_says_so():
    whole = read('name,age\n"ana,1\nbo,2\n"cy",3\ndi,4\n')
    assert whole.rows == ['"ana,1\nbo,2\n"cy",3', ["di", "4"]]
    assert "spans 3 lines" in str(whole.faults[0][0])


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_a_file_of_nothing_but_malformed_records_is_read_to_its_end(size):
    whole = read("name,age\n" + '"x"y,1\n' * 50, size=size)
    assert whole.rows == ['"x"y,1'] * 50
    assert len(whole.faults) == 50


@pytest.mark.covers("C19")
def test_a_quote_that_never_closes_refuses_the_file_and_names_the_row():
    error = refusal('name,age\nana,1\nbo,2\n"cy,3\ndi,4\n')
    assert (error.code, "row 3 opens a quote" in str(error)) == ("unclosed_quote", True)


def test_a_row_that_is_too_large_in_sum_is_faulty_alone():
    big = "x" * 60
    whole = read(f"name,age\nana,1\n{big},{big}\nbo,2\n", row_bytes_max=100)
    assert whole.faults == {1: [Fault("is larger than 100 bytes")]}
    assert len(whole.rows) == 3


def test_a_record_longer_than_a_batch_may_be_refuses_the_file():
    error = refusal("name,age\nana,1\n" + "x" * 500 + "\n", batch_bytes_max=100, block_bytes=10)
    assert (error.code, "row 2" in str(error)) == ("limit", True)


def test_a_batch_ends_early_when_it_holds_many_bytes():
    content = "name,age\n" + f'"{"x" * 20}\n{"y" * 20}",1\n' * 40
    reader = opened(content, batch_bytes_max=200, block_bytes=16)
    assert max(batch.end.offset - batch.start.offset for batch in reader.batches(1000)) < 300
    assert everything(reader).rows == [["x" * 20 + "\n" + "y" * 20, "1"]] * 40


class Endless(io.RawIOBase):
    """A file of `size` bytes that holds a beginning, then one byte for ever."""

    def __init__(self, beginning: bytes, filler: bytes, size: int) -> None:
        self.beginning, self.filler, self.size, self.at = beginning, filler, size, 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.at = offset
        return offset

    def read(self, count: int = -1, /) -> bytes:
        end = min(self.at + count, self.size)
        data = self.beginning[self.at : end]
        data += self.filler * (end - self.at - len(data))
        self.at = end
        return data


@pytest.mark.covers("C19", "C31")
@pytest.mark.parametrize(
    ("beginning", "filler", "code"),
    [
        (b'name,age\nana,1\n"bo', b"\n", "unclosed_quote"),
        (b'name,age\nana,1\n"bo', b"x", "limit"),
        (b"name,age\nana,1\nbo", b"x", "limit"),
        (b"name,age\nana,1\nbo", b",", "limit"),
        (b"", b"x", "limit"),
        (b"name,age\nana,1\n", b"\0", "limit"),
    ],
)
def test_an_endless_record_is_refused_in_bounded_memory(beginning, filler, code):
    source: Any = Endless(beginning, filler, size=50_000_000)
    limits = Limits(row_bytes_max=2**18, batch_bytes_max=2**20, block_bytes=2**16)
    tracemalloc.start()
    try:
        with pytest.raises(FileRejected) as caught:
            everything(open_reader(source, format="csv", schema=NAME_AGE, limits=limits))
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.code == code


# Header


@pytest.mark.covers("C27")
def test_header_names_match_without_regard_to_case_blanks_and_composition():
    schema = Schema((Column("cafe", ("Café",)),))
    assert opened(" CAFE\u0301 ,x\n", schema).columns == ("cafe", "x")


def test_an_alias_stands_for_its_field_and_unknown_columns_keep_their_text():
    assert opened("FULL NAME, Shoe Size ,age\nana,40,1\n").columns == ("name", "Shoe Size", "age")


@pytest.mark.covers("C26", "C28")
def test_all_faults_of_a_header_are_reported_at_once():
    error = refusal("name,,NAME ,x,X\n")
    assert error.code == "header"
    assert [str(fault) for fault in error.faults] == [
        "column 2 has no name",
        "NAME: columns 1 and 3 have the same name",
        "X: columns 4 and 5 have the same name",
    ]


def test_two_aliases_of_one_field_are_the_same_name():
    assert refusal("name,full name\n").code == "header"


def test_missing_required_columns_are_named_beside_what_was_found():
    schema = Schema((Column("name", ("name",)), Column("imei", ("imei", "IMEI number")), Column("x", ("x",), False)))
    error = refusal("nme,age\n", schema)
    assert error.code == "missing_columns"
    assert str(error) == "required columns are missing: name, imei; the header has: nme, age"
    assert [fault.field for fault in error.faults] == ["name", "imei"]


def test_unknown_columns_are_refused_with_a_hint_where_the_model_forbids_them():
    error = refusal("name,agee,colour\n", STRICT)
    assert error.code == "unknown_columns"
    assert [fault.field for fault in error.faults] == ["agee", "colour"]
    assert "did you mean 'age'?" in error.faults[0].message


def test_what_unknown_columns_mean_is_guessed_for_the_first_ones_only():
    error = refusal("name," + ",".join(f"agee{n}" for n in range(1000)), STRICT)
    guessed = [fault.message for fault in error.faults if "did you mean" in fault.message]
    assert (len(error.faults), len(guessed)) == (1000, 20)
    assert error.faults[-1] == Fault("is not a column of this operation", "agee999")


@pytest.mark.covers("C29")
def test_too_many_columns_are_refused():
    assert refusal("name," + ",".join(f"c{n}" for n in range(50)), columns_max=50).code == "limit"


@pytest.mark.covers("C24")
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_one_whose_header_fits_the_schema(delimiter):
    content = f'name{delimiter}age\n"a,b;c"{delimiter}1\n'
    assert read(content).rows == [["a,b;c", "1"]]


@pytest.mark.covers("C25")
@pytest.mark.parametrize("line", ["sep=;", "SEP=;", "sep=^"])
def test_a_sep_line_names_the_delimiter(line):
    assert read(f"{line}\r\nname{line[-1]}age\nana{line[-1]}1\n").rows == [["ana", "1"]]


def test_a_header_may_hold_line_breaks():
    schema = Schema((Column("name", ("full\nname",)),))
    assert read('"full\nname",age\nana,1\n', schema).rows == [["ana", "1"]]


def test_a_malformed_header_is_refused():
    assert refusal('"name"x,age\n').code == "header"


@pytest.mark.covers("C12", "C13", "SM-016")
@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \r\n\n  \n", b"\xef\xbb\xbf\n", b"sep=;\n"])
def test_an_empty_file_has_no_rows_and_no_columns(content):
    reader = opened(content)
    assert (reader.columns, list(reader.batches(10))) == ((), [])


def test_a_file_with_only_a_header_has_no_rows():
    reader = opened("name,age")
    assert (reader.columns, list(reader.batches(10))) == (("name", "age"), [])


# Encoding


@pytest.mark.covers("C04")
@pytest.mark.parametrize("block_bytes", [1, 11, 4096])
def test_a_byte_that_is_not_utf8_refuses_the_file_and_names_its_place(block_bytes):
    error = refusal(b'name,age\n\nana,1\n"b\no",2\ncy\xe9,3\ndi,4\n', block_bytes=block_bytes)
    assert error.code == "encoding"
    assert "byte 0xE9 at offset 26 (row 3) is not UTF-8; save the file as UTF-8" in str(error)
    plain = refusal(b"name,age\nana,1\nbo,2\ncy\xe9,3\ndi,4\n", block_bytes=block_bytes)
    assert "byte 0xE9 at offset 22 (row 3) is not UTF-8" in str(plain)


def test_a_byte_that_is_not_utf8_in_the_header_is_refused_there():
    assert "(the header)" in str(refusal(b"name,\xe9\nana,1\n"))


# Properties

CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["", '"', "\n", "\r\n", "\r", ",", ";", "é\n😀", " x ", "\u2028", "\x1c", "\x85"]
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[bytes, list[list[str]]]:
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=12))
    delimiter, line_end = draw(st.sampled_from(",;\t|")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quotes_all, has_bom, ends_bare = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))

    def cell(text: str) -> str:
        # In a file of one column nothing shows the delimiter, and an empty cell that is not quoted is a blank line.
        special = '"\r\n' + (delimiter if width > 1 else ",;\t|")
        is_bare = not quotes_all and not set(text) & set(special) and (text or width > 1)
        return text if is_bare else '"' + text.replace('"', '""') + '"'

    header = [f"c{number}" for number in range(width)]
    text = line_end.join(delimiter.join(map(cell, row)) for row in [header, *rows])
    return ("\ufeff" * has_bom + text + line_end * (not ends_bare)).encode(), rows


COLUMNS = Schema(tuple(Column(f"c{number}", (f"c{number}",), is_required=False) for number in range(4)))


@given(tables(), st.integers(1, 6), st.sampled_from([1, 7, 64, 2**18]))
def test_every_batch_size_and_block_size_yields_exactly_the_table(table, size, block_bytes):
    content, rows = table
    whole = read(content, COLUMNS, size, block_bytes=block_bytes)
    assert (whole.rows, whole.faults) == (rows, {})


@given(tables(), st.integers(1, 6))
def test_reading_resumes_at_every_batch_end_with_exactly_the_rest(table, size):
    content, rows = table
    reader = opened(content, COLUMNS, block_bytes=7)
    for batch in list(reader.batches(size)):
        rest = everything(reader, size, Position.parse(str(batch.end)))
        assert rest.rows == rows[batch.end.row - 1 :]
        assert next(reader.batches(size, batch.start)).rows == batch.rows


@given(st.text(st.sampled_from('ab,"\n\r\0é'), max_size=60), st.integers(1, 4), st.sampled_from([1, 7, 2**18]))
def test_any_text_is_read_alike_whatever_the_sizes(text, size, block_bytes):
    """Rows, faults and refusals are a matter of the file alone."""
    content = f"c0,c1\n{text}"

    def outcome(size: int, block_bytes: int) -> Any:
        try:
            whole = read(content, COLUMNS, size, block_bytes=block_bytes)
        except FileRejected as error:
            return str(error)
        return whole.rows, whole.faults

    assert outcome(size, block_bytes) == outcome(1000, 2**18)
