"""Several requests in one, and their answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.dataverse.requests import Part, pack, unpack

TYPE = 'multipart/mixed; boundary="batchresponse_1"'
PART = (
    b"--batchresponse_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
    b"HTTP/1.1 204 No Content\r\nOData-Version: 4.0\r\n\r\n\r\n"
)


def test_a_request_is_packed_with_the_line_ends_and_headers_the_platform_wants():
    packed = pack([Part("DELETE", "/api/data/v9.2/orders(1)", {"MSCRM.X": "y"})], "b")
    assert packed == (
        b"--b\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n\r\n"
        b"DELETE /api/data/v9.2/orders(1) HTTP/1.1\r\nMSCRM.X: y\r\n\r\n\r\n--b--\r\n"
    )


def test_a_body_says_that_it_is_json():
    packed = pack([Part("POST", "/orders", {}, b'{"a":1}')], "b")
    assert b'POST /orders HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{"a":1}\r\n' in packed


def test_answers_come_back_in_order_with_status_headers_and_body():
    second = PART.replace(b"204 No Content", b"412 Precondition Failed").replace(
        b"\r\n\r\n\r\n", b'\r\n\r\n{"e":1}\r\n'
    )
    first, last = unpack(TYPE, PART + second + b"--batchresponse_1--\r\n")
    assert (first.status, first.body, first.headers) == (204, b"", {"odata-version": "4.0"})
    assert (last.status, last.body) == (412, b'{"e":1}')


def test_an_answer_that_is_not_multipart_holds_no_parts():
    assert unpack("application/json", b'{"error":{}}') == []
    assert unpack(TYPE, b"") == []
    assert unpack(TYPE, b"--batchresponse_1--\r\n") == []


def test_a_part_that_is_cut_off_before_its_status_is_left_out():
    assert len(unpack(TYPE, PART + b"--batchresponse_1\r\nContent-Type: appl")) == 1


@given(st.lists(st.tuples(st.integers(200, 599), st.binary(max_size=40).map(bytes.hex)), max_size=8))
def test_whatever_number_of_parts_is_sent_is_read(parts: list[tuple[int, str]]):
    body = b"".join(
        f"--batchresponse_1\r\nContent-Type: x\r\n\r\nHTTP/1.1 {status} X\r\nA: b\r\n\r\n{text}\r\n".encode()
        for status, text in parts
    )
    read = unpack(TYPE, body + b"--batchresponse_1--\r\n")
    assert [(reply.status, reply.body.decode()) for reply in read] == parts
