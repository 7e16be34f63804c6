"""What MariaDB's error numbers mean for a batch, and which of its rows they point at."""

from __future__ import annotations

import re

from penstock.targets.model import ErrorKind, Limit, TargetError
from penstock.targets.sql.connections import FULL_WAIT_S
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Table

__all__ = ["kind_of", "refusal", "suspects"]

# fmt: off
NUMBERS = {
    ErrorKind.THROTTLED:   (1040, 1203, 1226, 4151),                # too many connections; a user's limits
    ErrorKind.TOKEN:       (1045, 1698, 1862),
    ErrorKind.PERMISSION:  (1044, 1142, 1143, 1227, 1290, 1370),
    ErrorKind.DEADLOCK:    (1020, 1205, 1213),                      # changed by another; lock wait; deadlock
    ErrorKind.TOO_BIG:     (1041, 1038, 1153, 1317, 1969),          # memory; packet; interrupted; statement time
    ErrorKind.CONNECTION:  (1053, 1077, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2055, 4031),
    ErrorKind.RACE:        (1054, 1146, 1412, 1615),                # the table was there a moment ago
    ErrorKind.BUSINESS:    (1643, 1644),                            # SIGNAL in a trigger
    ErrorKind.UNSUPPORTED: (1031, 1036, 1178, 1235, 1288),
    ErrorKind.DATA:        (1048, 1062, 1138, 1216, 1217, 1261, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1451,
                          1452, 1465, 1525, 1526, 1586, 1690, 1761, 1762, 1906, 4025, 4078, 4079, 4161),
}
# fmt: on
TOO_MANY_CONNECTIONS = (1040, 1203)
USER_LIMIT = 1226
KINDS = {number: kind for kind, numbers in NUMBERS.items() for number in numbers}
CLASSES = {"08": ErrorKind.CONNECTION, "22": ErrorKind.DATA, "23": ErrorKind.DATA, "45": ErrorKind.BUSINESS}

ROW = re.compile(r" at row (\d+)$")
COLUMN = re.compile(r"[Cc]olumn '(?P<quoted>[^']+)'|column (?:`[^`]+`\.)*`(?P<ticked>[^`]+)`|Field '(?P<field>[^']+)'")
CONSTRAINT = re.compile(r"CONSTRAINT `(?P<name>[^`]+)`|for key '(?P<key>[^']+)'")
DUPLICATE = re.compile(r"^Duplicate entry '(?P<entry>.*)' for key '(?P<key>[^']+)'$", re.DOTALL)


def kind_of(number: int, state: str | None) -> ErrorKind:
    """The class of an error."""
    return KINDS.get(number) or CLASSES.get((state or "")[:2], ErrorKind.OTHER)


def refusal(number: int, state: str | None, message: str) -> TargetError:
    """An error the server told."""
    column, constraint = COLUMN.search(message), CONSTRAINT.search(message)
    is_full = number in TOO_MANY_CONNECTIONS or (number == USER_LIMIT and "max_user_connections" in message)
    return TargetError(
        message,
        kind=kind_of(number, state),
        code=str(number),
        limit=Limit.CONCURRENCY if is_full else None,
        retry_after_s=FULL_WAIT_S if is_full else None,
        field=next(filter(None, column.groups()), None) if column else None,
        details={
            **({"sqlstate": state} if state else {}),
            **({"constraint": constraint["name"] or constraint["key"]} if constraint else {}),
        },
    )


def suspects(error: TargetError, group: RowGroup, table: Table, *, is_insert: bool) -> list[int]:
    """The rows an error points at, as far as it says; in doubt none. Only inserts count rows as we do."""
    row, duplicate = ROW.search(error.message), DUPLICATE.match(error.message)
    if row and is_insert and 0 < int(row[1]) <= len(group):
        return [int(row[1]) - 1]
    if error.code == "1048" and error.field in group.columns:
        return [i for i, value in enumerate(group.column(error.field)) if value is None]
    if duplicate:
        columns = table.key_names.get(duplicate["key"], ())
        if columns and set(columns) <= set(group.columns):
            rows = zip(*(group.column(name) for name in columns), strict=True)
            return [i for i, row in enumerate(rows) if "-".join(map(str, row)) == duplicate["entry"]]
    return []
