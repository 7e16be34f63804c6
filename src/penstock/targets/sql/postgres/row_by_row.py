"""Rows of a failed batch written one by one, on the server, so that each gets its own verdict.

One round trip runs a loop with an exception block a row. Every block is a subtransaction, and a backend with more than
64 of them slows down all others, so a transaction takes at most `ROWS_MAX` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from penstock.targets.model import Mode, Outcome, Verdict
from penstock.targets.sql.postgres.error_mapping import described
from penstock.targets.sql.postgres.statements import ORDINAL, Plan, from_stage
from penstock.targets.sql.postgres.values import in_column, values_at_fault, wrong_types
from penstock.targets.sql.postgres.writing import plan_for, stage
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import ansi
from penstock.targets.sql.target import DONE, TableBatch, left_out, not_found

__all__ = ["ROWS_MAX", "portions", "without_wrong_types", "write_rows"]

ROWS_MAX = 60
RETRIED = ("40P01", "40001", "55P03", "53200", "54000")
"""Codes that are no fault of the row: they end the loop, and the whole is tried again."""
FACTS = {
    "code": "RETURNED_SQLSTATE",
    "message": "MESSAGE_TEXT",
    "detail": "PG_EXCEPTION_DETAIL",
    "hint": "PG_EXCEPTION_HINT",
    "constraint_name": "CONSTRAINT_NAME",
    "column_name": "COLUMN_NAME",
    "table_name": "TABLE_NAME",
}
OUTCOME, XID = "penstock outcome", "penstock xid"
TOLD = {fact: f"penstock {fact}" for fact in FACTS}
"""The columns of the stage for what is told of a row. No table has columns of such names."""


def without_wrong_types(work: TableBatch) -> tuple[dict[int, Verdict], list[RowGroup]]:
    """The verdicts, by position, on rows that the driver could not even send, and the groups without them."""
    told: dict[int, Verdict] = {}
    fitting = []
    for group in work.layout.groups:
        wrong = wrong_types(group, work.table)
        told.update({group.positions[n]: Verdict(Outcome.FAILED, error=error) for n, error in wrong.items()})
        fitting.append(group.pick([n for n in range(len(group)) if n not in wrong]))
    return told, fitting


def portions(groups: Sequence[RowGroup]) -> Iterator[list[RowGroup]]:
    """The rows in portions of which each is one transaction, in the order of the groups."""
    portion: list[RowGroup] = []
    room = ROWS_MAX
    for group in groups:
        start = 0
        while start < len(group):
            taken = group.pick(range(start, min(start + room, len(group))))
            portion.append(taken)
            start, room = start + len(taken), room - len(taken)
            if not room:
                yield portion
                portion, room = [], ROWS_MAX
    if portion:
        yield portion


async def write_rows(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, list[Verdict]]:
    """Write the rows the table takes; return the transaction's id and the verdicts, in the order of the rows."""
    plan = plan_for(connection, work, group)
    await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    made = plan.generated if work.mode is Mode.CREATE else ()
    more = [f"{ansi(k)} {work.table.columns[k].type}" for k in made]
    more += [f"{ansi(column)} text" for column in (OUTCOME, *TOLD.values())]
    name = await stage(connection, work, group, is_numbered=True, more=more)
    for key in made:
        await connection.execute(f"UPDATE {name} SET {ansi(key)} = {work.table.columns[key].default}")
    plan = replace(plan, columns=(*plan.columns, *made))
    await connection.execute(_loop(plan, work.mode, name, len(group)))
    xid = f"pg_current_xact_id()::text AS {ansi(XID)}"
    told = await connection.fetch(f"SELECT *, {xid} FROM {name} ORDER BY {ORDINAL}")
    return told[0][XID], [_verdict(work, group, n, row) for n, row in enumerate(told)]


def _loop(plan: Plan, mode: Mode, name: str, rows: int) -> str:
    index, outcome = ansi("penstock index"), ansi("penstock new outcome")
    new = {fact: ansi(f"penstock new {fact}") for fact in FACTS}
    row = f"WHERE {ORDINAL} = {index}"
    statement = plan.told(mode, from_stage(name, plan.given, only=index))
    told = ", ".join(f"{ansi(TOLD[fact])} = {new[fact]}" for fact in FACTS)
    body = f"""
#variable_conflict use_column
DECLARE {outcome} text; {" ".join(f"{variable} text;" for variable in new.values())}
BEGIN
  FOR {index} IN 1..{rows} LOOP
    BEGIN
      {statement} SELECT outcome INTO {outcome} FROM told;
      UPDATE {name} SET {ansi(OUTCOME)} = {outcome} {row};
    EXCEPTION WHEN OTHERS THEN
      IF SQLSTATE IN ({", ".join(f"'{code}'" for code in RETRIED)}) THEN RAISE; END IF;
      GET STACKED DIAGNOSTICS {", ".join(f"{new[fact]} = {item}" for fact, item in FACTS.items())};
      UPDATE {name} SET {told} {row};
    END;
  END LOOP;
END
"""
    tag = f"$penstock_{crc32(body.encode()):08x}$"
    return f"DO {tag}{body}{tag}"


def _verdict(work: TableBatch, group: RowGroup, index: int, row: Any) -> Verdict:
    facts = {fact: row[column] for fact, column in TOLD.items()}
    if facts["code"]:
        error = described(facts.pop("code"), facts.pop("message"), facts)
        at_fault = values_at_fault(group.pick([index]), work.table, error)
        return Verdict(Outcome.FAILED, error=in_column(error, at_fault[0][1]) if at_fault else error)
    outcome = row[OUTCOME]
    if outcome == "left out":
        return Verdict(Outcome.FAILED, error=left_out(work))
    if outcome == "missing":
        return not_found(work, group, index)
    if outcome == "created" and work.mode is Mode.CREATE:
        return Verdict(Outcome.CREATED, _id(work, row))
    return DONE[work.mode] if outcome == "done" else Verdict(Outcome(outcome))


def _id(work: TableBatch, row: Any) -> Any:
    values = tuple(row.get(name) for name in work.key)
    return values[0] if len(values) == 1 else values or None
