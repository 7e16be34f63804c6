"""Hostile and malformed files, each with the one verdict it must get.

Every input of `ACCEPTED` is read exactly, every one of `ROW_FAULTY` costs that row and no other, every one of
`REFUSED` is refused as a whole with its code. Nothing else ever escapes a reader.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FileRejected
from penstock.formats import Batch, Limits, open_reader
from penstock.schema import Column, Schema

SCHEMA = Schema((Column("name", ("name",)), Column("note", ("note",), is_required=False)))
LIMITS = Limits(row_bytes_max=200_000, batch_bytes_max=1_000_000, block_bytes=4096)


def read(content: bytes, format: str, limits: Limits = LIMITS, size: int = 2) -> Batch:
    reader = open_reader(io.BytesIO(content), format=format, schema=SCHEMA, limits=limits)
    batches = list(reader.batches(size))
    if not batches:
        return Batch(None, None, [])  # type: ignore[arg-type]
    whole = Batch(batches[0].start, batches[-1].end, [])
    for batch in batches:
        whole.faults |= {len(whole.rows) + index: faults for index, faults in batch.faults.items()}
        whole.rows += batch.rows
    return whole


def table(*cells: str) -> bytes:
    """A CSV file with these texts in the note of one row each."""
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([("name", "note"), *((f"n{index}", cell) for index, cell in enumerate(cells))])
    return stream.getvalue().encode()


def noted(*cells: str) -> list[list[str]]:
    return [[f"n{index}", cell] for index, cell in enumerate(cells)]


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1")
MARKUP = ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "&lt;")
COMMANDS = ("'; DROP TABLE rows;--", "$(rm -rf /)", "{{7*7}}", "a\nERROR forged", "\x1b[31mred")
NUMBERS = ("1e309", "1e-400", "NaN", "Infinity", "-0", "0x1F", "1_000", "1,000.5", "٣", str(2**64), "9" * 5000)
DATES = ("0000-00-00", "2030-02-30", "10000-01-01", "24:00", "23:59:60", "+24:00")
BOOLEANS = ("yes", "ja", "oui", "да", "はい", "T", "on", "1")
SPLIT = ("é" * 5000, "x" + "😀" * 3000)
MANY = [{"a": number} for number in range(20_000)]
WIDE = [{f"k{number}": 0 for number in range(9000)}]
TEMPTING = {"__class__": "os.system", "$ref": "#"}
TEXTS = ("\u202eabc", "a\u200bb", "e\u0301", "👩‍👩‍👧", "\u2028", "\x85", "\x0b\x0c\x1c")

ACCEPTED: dict[str, tuple[str, bytes, list[object]]] = {
    "C01 byte order mark": ("csv", b"\xef\xbb\xbfname,note\nn0,x\n", noted("x")),
    "C09 multibyte character on a block boundary": ("csv", table(*SPLIT), noted(*SPLIT)),
    "C12 empty file": ("csv", b"", []),
    "C13 header only": ("csv", b"name,note\r\n", []),
    "C14 no final newline": ("csv", b"name,note\nn0,x", noted("x")),
    "C15 mixed line ends": ("csv", b"name,note\rn0,x\r\nn1,y\nn2,z\r", noted("x", "y", "z")),
    "C16 blank lines": ("csv", b"\n\nname,note\n\nn0,x\n\r\n\nn1,y\n\n", noted("x", "y")),
    "C20 quote inside a bare cell": ("csv", b'name,note\nn0,5" pipe\n', noted('5" pipe')),
    "C21 doubled quotes": ("csv", b'name,note\nn0,"say ""hi"""\n', noted('say "hi"')),
    "C22 newline in quotes": ("csv", b'name,note\nn0,"a\nb\r\nc"\n', noted("a\nb\r\nc")),
    "C24 tabs": ("csv", b"name\tnote\nn0\tx\n", noted("x")),
    "C24 semicolons": ("csv", b"name;note\nn0;x,y\n", noted("x,y")),
    "C24 pipes": ("csv", b"name|note\nn0|x\n", noted("x")),
    "C25 sep line": ("csv", b"sep=;\r\nname;note\r\nn0;x\r\n", noted("x")),
    "C30 cell over the csv module's own limit": ("csv", table("x" * 131_073), noted("x" * 131_073)),
    "C33 right-to-left, zero-width, combining": ("csv", table(*TEXTS), noted(*TEXTS)),
    "C34 columns named like built-ins": ("csv", b"name,__proto__,constructor,id\nn0,a,b,c\n", [["n0", "a", "b", "c"]]),
    "C35 formulas": ("csv", table(*FORMULAS), noted(*FORMULAS)),
    "C36 markup": ("csv", table(*MARKUP), noted(*MARKUP)),
    "C37 commands and escapes": ("csv", table(*COMMANDS), noted(*COMMANDS)),
    "C38 numbers of all kinds": ("csv", table(*NUMBERS), noted(*NUMBERS)),
    "C39 dates of all kinds": ("csv", table(*DATES), noted(*DATES)),
    "C40 booleans of many tongues": ("csv", table(*BOOLEANS), noted(*BOOLEANS)),
    "J12 long array": ("json", json.dumps(MANY).encode(), [*MANY]),
    "J14 byte order mark, array": ("json", b'\xef\xbb\xbf[{"a": 1}]', [{"a": 1}]),
    "J14 byte order mark, lines": ("jsonl", b'\xef\xbb\xbf{"a": 1}\n', [{"a": 1}]),
    "J16 blank and CRLF lines": ("jsonl", b'{"a": 1}\r\n\r\n\n{"a": 2}', [{"a": 1}, {"a": 2}]),
    "J17 very many keys": ("json", json.dumps(WIDE).encode(), [*WIDE]),
    "J19 mixed types in a column": ("json", b'[{"a": 1}, {"a": "x"}]', [{"a": 1}, {"a": "x"}]),
    "J20 names that tempt decoders": ("jsonl", json.dumps(TEMPTING).encode(), [TEMPTING]),
}  # fmt: skip

ROW_FAULTY: dict[str, tuple[str, bytes]] = {
    "C10 NUL in a cell": ("csv", b"a\0b,x"),
    "C17 ragged short row": ("csv", b"bad"),
    "C18 ragged long row": ("csv", b"bad,x,y"),
    "C20 text behind a closing quote": ("csv", b'"bad"x,y'),
    "C30 row over the limit": ("csv", b"x" * 150_000 + b"," + b"y" * 150_000),
    "J01 nested 1,000 deep, array": ("json", b'{"a":' * 1000 + b"1" + b"}" * 1000),
    "J01 nested 80,000 deep, array": ("json", b"[" * 80_000 + b"]" * 80_000),
    "J01 nested 1,000 deep, lines": ("jsonl", b'{"a":' * 1000 + b"1" + b"}" * 1000),
    "J01 nested 80,000 deep, lines": ("jsonl", b"[" * 80_000 + b"]" * 80_000),
    "J01 80,000 brackets that never close, lines": ("jsonl", b"[" * 80_000),
    "J02 NaN, array": ("json", b'{"a": NaN}'),
    "J02 Infinity, lines": ("jsonl", b'{"a": Infinity}'),
    "J03 repeated key, lines": ("jsonl", b'{"a": 1, "a": 2}'),
    "J04 5,000 digits, array": ("json", b'{"a": ' + b"1" * 5000 + b"}"),
    "J04 5,000 digits, lines": ("jsonl", b'{"a": ' + b"1" * 5000 + b"}"),
    "J05 1e400, array": ("json", b'{"a": 1e400}'),
    "J05 1e400, lines": ("jsonl", b'{"a": 1e400}'),
    "J06 lone surrogate, array": ("json", b'{"a": "\\udfff"}'),
    "J06 lone surrogate, lines": ("jsonl", b'{"a": "\\udfff"}'),
    "J07 NUL escape, array": ("json", b'{"a": "\\u0000"}'),
    "J07 NUL escape, lines": ("jsonl", b'{"a": "\\u0000"}'),
    "J10 single quotes, lines": ("jsonl", b"{'a': 1}"),
    "J11 scalar, lines": ("jsonl", b"12"),
    "J13 huge string, array": ("json", b'{"a": "' + b"x" * 3_000_000 + b'"}'),
    "J13 huge string, lines": ("jsonl", b'{"a": "' + b"x" * 3_000_000 + b'"}'),
    "J15 bad middle line": ("jsonl", b'{"a": 1'),
    "J17 more keys than a row may hold": ("json", json.dumps({f"k{n}": 0 for n in range(50_000)}).encode()),
    "bytes that are not UTF-8, lines": ("jsonl", b'{"a": "\xff"}'),
}  # fmt: skip

REFUSED: dict[str, tuple[str, bytes, str]] = {
    "C02 UTF-16 with a mark": ("csv", "name,note\nx,y\n".encode("utf-16"), "encoding"),
    "C02 UTF-16 big-endian with a mark": ("csv", b"\xfe\xff" + "name\n".encode("utf-16-be"), "encoding"),
    "C02 UTF-32 with a mark": ("csv", "name\n".encode("utf-32"), "encoding"),
    "C03 UTF-16 without a mark": ("csv", "name,note\n".encode("utf-16-le"), "encoding"),
    "C03 UTF-16 big-endian without a mark": ("csv", "name,note\n".encode("utf-16-be"), "encoding"),
    "C04 Latin-1": ("csv", "name,note\nx,é!\n".encode("latin-1"), "encoding"),
    "C05 Windows-1252 quotes": ("csv", "name,note\nx,“y”\n".encode("cp1252"), "encoding"),
    "C06 overlong UTF-8": ("csv", b"name,note\nx,\xc0\xaf\n", "encoding"),
    "C07 surrogate bytes": ("csv", b"name,note\nx,\xed\xa0\x80\n", "encoding"),
    "C08 truncated multibyte at the end": ("csv", b"name,note\nx,\xe2\x82", "encoding"),
    "C11 nothing but NULs": ("csv", b"\0" * 10_000, "not_text"),
    "C11 NUL in the header": ("csv", b"name,no\0te\nx,y\n", "header"),
    "C19 unclosed quote to the end": ("csv", b'name,note\nx,"y\n' + b"a,b\n" * 100, "unclosed_quote"),
    "C19 unclosed quote for long": ("csv", b'name,note\nx,"y\n' + b"a,b\n" * 400_000, "unclosed_quote"),
    "C23 wrong delimiter": ("csv", b"name^note\nx^y\n", "missing_columns"),
    "C26 repeated column": ("csv", b"name,note,name\nx,y,z\n", "header"),
    "C27 columns equal after trimming and case": ("csv", "name,Caf\u00e9, cafe\u0301 \nx,y,z\n".encode(), "header"),
    "C28 column without a name": ("csv", b"name,,note\nx,y,z\n", "header"),
    "C29 10,000 columns": ("csv", b"name," + b",".join(b"c%d" % n for n in range(10_000)), "limit"),
    "C31 one endless line": ("csv", b"name,note\n" + b"x" * 3_000_000, "limit"),
    "C31 one endless line as header": ("csv", b"x" * 3_000_000, "limit"),
    "C41 gzip": ("csv", gzip.compress(b"name,note\n"), "not_text"),
    "zip or XLSX": ("csv", b"PK\x03\x04" + b"\x14\0" * 50, "not_text"),
    "Parquet": ("csv", b"PAR1" + b"\0" * 50, "not_text"),
    "gzip, array": ("json", gzip.compress(b"[]"), "not_text"),
    "UTF-16, lines": ("jsonl", '{"a": 1}'.encode("utf-16"), "encoding"),
    "UTF-16 without a mark, array": ("json", "[]".encode("utf-16-le"), "encoding"),
    "Latin-1, array": ("json", '[{"a": "é"}]'.encode("latin-1"), "encoding"),
    "J01 80,000 brackets that never close": ("json", b"[" * 80_000, "json"),
    "J03 repeated key, array": ("json", b'[{"a": 1, "a": 2}]', "json"),
    "J08 truncated": ("json", b'[{"a": 1}, {"a"', "json"),
    "J09 trailing garbage": ("json", b'[{"a": 1}] garbage', "json"),
    "J10 comments": ("json", b'[{"a": 1} /* x */]', "json"),
    "J10 single quotes": ("json", b"[{'a': 1}]", "json"),
    "J11 top-level scalar": ("json", b"12", "json"),
    "J11 top-level object": ("json", b'{"rows": []}', "json"),
    "JSON Lines named .json": ("json", b'{"a": 1}\n{"a": 2}\n', "json"),
}  # fmt: skip

FRAMES = {
    "csv": (b"name,note\nbefore,1\n", b"\nafter,2\n", [["before", "1"], ["after", "2"]]),
    "json": (b'[{"n": "before"}, ', b', {"n": "after"}]', [{"n": "before"}, {"n": "after"}]),
    "jsonl": (b'{"n": "before"}\n', b'\n{"n": "after"}\n', [{"n": "before"}, {"n": "after"}]),
}


@pytest.mark.covers(*(name.split()[0] for name in ACCEPTED))
@pytest.mark.parametrize("name", ACCEPTED)
def test_an_unusual_file_is_accepted_exactly(name):
    format, content, rows = ACCEPTED[name]
    whole = read(content, format)
    assert (whole.rows, whole.faults) == (rows, {})


@pytest.mark.covers(*(name.split()[0] for name in ROW_FAULTY if name[0] in "CJ"))
@pytest.mark.parametrize("name", ROW_FAULTY)
def test_a_bad_row_costs_itself_and_leaves_its_neighbours(name):
    format, row = ROW_FAULTY[name]
    before, after, neighbours = FRAMES[format]
    whole = read(before + row + after, format)
    assert [whole.rows[0], whole.rows[-1]] == neighbours
    assert (len(whole.rows), list(whole.faults)) == (3, [1])


@pytest.mark.covers(*(name.split()[0] for name in REFUSED if name[1].isdigit()))
@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_with_its_code(name):
    format, content, code = REFUSED[name]
    with pytest.raises(FileRejected) as caught:
        read(content, format)
    assert caught.value.code == code
    assert len(str(caught.value)) < 4000


def test_a_real_zip_archive_is_refused_by_its_name():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.csv", "name,note\n")
    with pytest.raises(FileRejected, match="a zip archive or an XLSX workbook"):
        read(stream.getvalue(), "csv")


SMALL = Limits(row_bytes_max=64, batch_bytes_max=256, columns_max=8, json_depth_max=5, block_bytes=13)
SEEDS = [content for _, content, *_ in [*ACCEPTED.values(), *REFUSED.values()] if len(content) < 400] + [
    b"".join((FRAMES[format][0], row, FRAMES[format][1])) for format, row in ROW_FAULTY.values() if len(row) < 400
]


@given(st.sampled_from(SEEDS), st.data(), st.sampled_from(["csv", "json", "jsonl"]))
def test_no_mutation_of_a_hostile_file_escapes_as_anything_but_a_verdict(seed, data, format):
    at = data.draw(st.integers(0, len(seed)))
    cut = data.draw(st.integers(0, 8))
    inserted = data.draw(
        st.binary(max_size=6) | st.sampled_from([b'"', b"\0", b"\r", b"\n", b"{", b"]", b"\\", b"\xff"])
    )
    content = seed[:at] + inserted + seed[at + cut :]
    with suppress(FileRejected):
        whole = read(content, format, SMALL)
        assert all(isinstance(row, list | dict) or index in whole.faults for index, row in enumerate(whole.rows))
