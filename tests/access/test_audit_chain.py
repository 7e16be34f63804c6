"""The chain of the audit log: each change, removal, exchange and cut is found; an erasure that is told of is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.access.chain import ERASED, START, ChainCheck, Entry, details_digest, digest_of


def chain(*acts):
    made, before = [], START
    for number, (action, subject, details) in enumerate(acts, 1):
        salt = None if details is None else f"salt{number}"
        covered = None if details is None else details_digest(details, salt)
        entry = Entry("acme", number, 1000 + number, "ana", action, subject, details, salt, covered, "")
        entry = replace(entry, digest=digest_of(entry, before))
        made.append(entry)
        before = entry.digest
    return made


def faults(entries, end=None):
    check = ChainCheck()
    found = [fault for entry in entries for fault in check.next(entry)]
    last = entries[-1] if entries else None
    return found + list(check.end(*(end or (last.sequence, last.digest))))


CHAIN = chain(*[("operation.cancel", f"op{n % 2}", {"cause": f"c{n}"}) for n in range(5)])
END = (5, CHAIN[-1].digest)


def test_an_untouched_chain_has_no_faults():
    assert faults(CHAIN) == []


@pytest.mark.parametrize("field", ["tenant", "at", "actor", "action", "subject", "details_digest"])
def test_a_changed_field_is_found_where_it_is(field):
    value = 7 if field == "at" else "changed"
    entries = [replace(e, **{field: value}) if e.sequence == 3 else e for e in CHAIN]
    assert {number for number, _ in faults(entries)} >= {3}


def test_changed_details_are_found():
    entries = [replace(e, details={"cause": "other"}) if e.sequence == 2 else e for e in CHAIN]
    assert faults(entries) == [(2, "its details were changed")]


def test_a_changed_entry_whose_digest_was_made_to_fit_breaks_the_next_one():
    changed = replace(CHAIN[1], actor="ben")
    changed = replace(changed, digest=digest_of(changed, CHAIN[0].digest))
    assert [number for number, _ in faults([CHAIN[0], changed, *CHAIN[2:]])] == [3]


def test_a_removed_entry_is_found():
    assert (2, "entries 2 to 2 are missing") in faults([CHAIN[0], *CHAIN[2:]], END)


def test_a_removed_beginning_is_found():
    assert (1, "entries 1 to 2 are missing") in faults(CHAIN[2:], END)


def test_a_cut_end_is_found():
    assert faults(CHAIN[:4], END) == [(5, "the chain ends with entry 4, and should end with 5")]


def test_exchanged_entries_are_found():
    exchanged = [replace(CHAIN[2], sequence=2), replace(CHAIN[1], sequence=3)]
    assert next(number for number, _ in faults([CHAIN[0], *exchanged, *CHAIN[3:]])) == 2


def test_details_that_were_erased_and_told_of_are_no_fault():
    entries = chain(("operation.cancel", "op", {"cause": "x"}), (ERASED, "op", None))
    assert faults([replace(entries[0], details=None, salt=None), entries[1]]) == []


def test_details_that_are_gone_without_a_word_are_a_fault():
    entries = chain(("operation.cancel", "op", {"cause": "x"}), (ERASED, "other", None))
    assert [number for number, _ in faults([replace(entries[0], details=None, salt=None), entries[1]])] == [1]
