"""The header Idempotency-Key: both spellings are one key, and what is no key is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.idempotency.header import KeyMalformed, key_of

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255)


def sent(*values: bytes) -> str | None:
    return key_of([(b"host", b"x"), *((b"Idempotency-Key", value) for value in values)])


@given(PRINTABLE)
def test_a_quoted_key_is_the_text_between_its_quotes(key: str):
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    assert sent(f'"{quoted}"'.encode()) == key


@pytest.mark.parametrize("value", [b"8e03978e-40d5-43dd-bc93-6894a57f9324", b"order:7/a+b=~", b" \tpadded\t "])
def test_a_bare_key_is_the_same_key_as_a_quoted_one(value: bytes):
    assert sent(value) == sent(b'"' + value.strip() + b'"') == value.strip().decode()


def test_a_request_without_the_header_has_no_key():
    assert key_of([]) is None


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([b""], "1 to 255 characters; found 0"),
        ([b'""'], "1 to 255 characters; found 0"),
        ([b"k" * 256], "1 to 255 characters; found 256"),
        ([b"k" * 10_000], "found 10000"),
        ([b'"' + b"k" * 10_000 + b'"'], "found 10000"),
        ([b"a", b"a"], "sent 2 times"),
        ([b"a, b"], "something else"),
        ([b"a,b"], "something else"),
        ([b"a b"], "something else"),
        ([b'"a'], "something else"),
        ([b'a"'], "something else"),
        ([b'"a"b"'], "something else"),
        ([b'"a\\b"'], "something else"),
        ([b'"a";v=1'], "something else"),
        ([b"a\r\nX: y"], "something else"),
        ([b'"a\0b"'], "something else"),
        ([b"\x7f"], "something else"),
        ([b"schl\xc3\xbcssel"], "something else"),
        ([b"\xff\xfe"], "something else"),
    ],
)
def test_what_is_no_key_is_refused_and_the_reason_is_told(values: list[bytes], told: str):
    with pytest.raises(KeyMalformed, match=told):
        sent(*values)


def test_a_refusal_does_not_repeat_what_was_sent():
    with pytest.raises(KeyMalformed) as caught:
        sent(b"<script>" + b"k" * 10_000)
    assert "script" not in str(caught.value)
