"""The small part of OData's grammar that clients of the remote use: paths with keys, literals and filters."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .problems import Refused, bad_request

__all__ = ["Segment", "literal", "parse_filter", "parse_keys", "parse_path", "same_text"]

GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
TOKEN = re.compile(r"\s*('(?:[^']|'')*'|\[(?:[^\]\"']|\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*')*\]|[(),=]|[^\s(),='\[\]]+)")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda text, part: part in text,
    "startswith": lambda text, part: text.startswith(part),
    "endswith": lambda text, part: text.endswith(part),
}
IN = "Microsoft.Dynamics.CRM.In"
Test = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Segment:
    """One step of a path: a name and what stood in its parentheses."""

    name: str
    key: str | None = None


def parse_path(path: str) -> list[Segment]:
    """The steps of a path below the API's root; a slash inside quotes does not part them."""
    steps, depth, is_quoted, start = [], 0, False, 0
    for at, letter in enumerate(path):
        if letter == "'":
            is_quoted = not is_quoted
        elif not is_quoted and letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "/" and not is_quoted and depth == 0:
            steps.append(path[start:at])
            start = at + 1
    steps.append(path[start:])
    return [_segment(step) for step in steps if step]


def parse_keys(text: str) -> dict[str, Any]:
    """`a='x',b=3` as a mapping; a bare GUID stands under the empty name."""
    if GUID.fullmatch(text):
        return {"": text.lower()}
    tokens, found, at = _tokens(text), {}, 0
    while at + 2 < len(tokens) and tokens[at + 1] == "=":
        found[tokens[at]] = literal(tokens[at + 2])
        at += 3
        if at < len(tokens) and tokens[at] != ",":
            break
        at += 1
    if not found or at < len(tokens):
        raise Refused(bad_request(f"Bad Request - Error in query syntax: '{text}' is no key."))
    return found


def literal(text: str) -> Any:
    """The value a literal stands for; a GUID is text in lower case."""
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if GUID.fullmatch(text):
        return text.lower()
    if text in {"null", "true", "false"}:
        return {"null": None, "true": True, "false": False}[text]
    try:
        return float(text) if re.search(r"[.eE]", text) else int(text)
    except ValueError:
        if re.fullmatch(r"\d{4}-\d\d-\d\d.*", text):
            return text
        raise Refused(bad_request(f"Bad Request - Error in query syntax: '{text}' is no literal.")) from None


def same_text(value: Any) -> Any:
    """A value as the database compares it: text ignores case and trailing blanks."""
    return value.casefold().rstrip(" ") if isinstance(value, str) else value


def parse_filter(text: str, aliases: Mapping[str, str]) -> Test:
    """The test that a `$filter` describes; aliases are query options such as `@m='x'`."""
    parser = _Parser(_tokens(text), aliases)
    test = parser.either()
    if not parser.is_done:
        raise _misread(text)
    return test


def _segment(text: str) -> Segment:
    name, bracket, rest = text.partition("(")
    return Segment(name, rest.removesuffix(")")) if bracket else Segment(name)


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = TOKEN.match(text, at)
        if match is None:
            raise _misread(text)
        found.append(match[1])
        at = match.end()
    return found


def _misread(text: str) -> Refused:
    return Refused(bad_request(f"Bad Request - Error in query syntax near '{text[:80]}'."))


class _Parser:
    """Recursive descent over a filter's tokens: or, and, not, parentheses, comparisons, functions."""

    def __init__(self, tokens: list[str], aliases: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._aliases = aliases
        self._at = 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._tokens)

    def either(self) -> Test:
        tests = [self.both()]
        while self._skip("or"):
            tests.append(self.both())
        return tests[0] if len(tests) == 1 else lambda row: any(test(row) for test in tests)

    def both(self) -> Test:
        tests = [self.single()]
        while self._skip("and"):
            tests.append(self.single())
        return tests[0] if len(tests) == 1 else lambda row: all(test(row) for test in tests)

    def single(self) -> Test:
        if self._skip("not"):
            inner = self.single()
            return lambda row: not inner(row)
        if self._skip("("):
            inner = self.either()
            self._take(")")
            return inner
        name = self._take()
        if self._skip("("):
            return self._membership() if name == IN else self._text_test(name)
        return self._comparison(name)

    def _comparison(self, name: str) -> Test:
        word = self._take()
        if word not in COMPARISONS:
            raise _misread(" ".join(self._tokens))
        compare, wanted = COMPARISONS[word], same_text(self._value(self._take()))

        def test(row: Mapping[str, Any]) -> bool:
            found = same_text(_field(row, name))
            if found is None or wanted is None:
                return word in {"eq", "ne"} and compare(found, wanted)
            if isinstance(found, str) != isinstance(wanted, str):
                raise Refused(bad_request(f"A binary operator with incompatible types was detected at '{name}'."))
            return compare(found, wanted)

        return test

    def _text_test(self, name: str) -> Test:
        if name not in TEXT_TESTS:
            raise _misread(name)
        column = self._take()
        self._take(",")
        wanted = same_text(self._value(self._take()))
        self._take(")")
        return lambda row: TEXT_TESTS[name](same_text(_field(row, column)) or "", wanted)

    def _membership(self) -> Test:
        given = {}
        while not self._skip(")"):
            name = self._take()
            self._take("=")
            given[name] = self._take()
            self._skip(",")
        if given.keys() != {"PropertyName", "PropertyValues"}:
            raise _misread(IN)
        column, wanted = literal(given["PropertyName"]), {str(same_text(value)) for value in _list(given)}
        return lambda row: str(same_text(_field(row, column))) in wanted

    def _value(self, token: str) -> Any:
        return literal(self._aliases[token] if token.startswith("@") and token in self._aliases else token)

    def _skip(self, word: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == word:
            self._at += 1
            return True
        return False

    def _take(self, word: str | None = None) -> str:
        if self._at == len(self._tokens) or (word is not None and self._tokens[self._at] != word):
            raise _misread(" ".join(self._tokens))
        self._at += 1
        return self._tokens[self._at - 1]


def _list(given: Mapping[str, str]) -> list[str]:
    text = given["PropertyValues"]
    try:
        values = json.loads(text)
    except ValueError:
        values = [literal(item) for item in re.findall(r"'(?:[^']|'')*'", text)]
    if not all(isinstance(value, str) for value in values):
        raise Refused(bad_request("Bad Request - PropertyValues takes strings only."))
    return list(values)


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise Refused(bad_request(f"Could not find a property named '{name}'.", "0x80060888"))
    return row[name]
