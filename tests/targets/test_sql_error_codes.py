"""What the databases' errors mean, and which rows they point at: the tables, without a database."""

from __future__ import annotations

from decimal import Decimal

import pytest

from penstock.targets.model import ErrorKind, Limit
from penstock.targets.sql.connections import FULL_WAIT_S
from penstock.targets.sql.mariadb import error_codes as mariadb
from penstock.targets.sql.postgres import error_mapping as postgres
from penstock.targets.sql.postgres.values import wrong_types
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.sqlite import error_codes as sqlite
from penstock.targets.sql.table import Column, Table

TABLE = Table(
    schema=None,
    name="products",
    columns={
        "id": Column("id", "integer", "integer"),
        "name": Column("name", "character varying", "character varying(5)", length_max=5),
        "parent": Column("parent", "integer", "integer"),
        "tags": Column("tags", "text[]", "text[]", is_array=True),
        "price": Column("price", "numeric", "numeric(8,2)"),
    },
    key_names={"PRIMARY": ("id",), "by_name": ("name", "parent")},
)
SHEET = RowGroup.of(("id", "name", "parent"), [(1, "a", 9), (2, None, 8), (3, "too long", 9), (4, "b", None)], range(4))


@pytest.mark.covers("BX-012")
@pytest.mark.parametrize(
    "code, kind",
    [
        ("53300", ErrorKind.THROTTLED),
        ("57P03", ErrorKind.CONNECTION),
        ("28P01", ErrorKind.TOKEN),
        ("42501", ErrorKind.PERMISSION),
        ("08006", ErrorKind.CONNECTION),
        ("57P01", ErrorKind.CONNECTION),
        ("40P01", ErrorKind.DEADLOCK),
        ("40001", ErrorKind.DEADLOCK),
        ("55P03", ErrorKind.DEADLOCK),
        ("42P01", ErrorKind.RACE),
        ("57014", ErrorKind.TOO_BIG),
        ("53200", ErrorKind.TOO_BIG),
        ("P0001", ErrorKind.BUSINESS),
        ("22001", ErrorKind.DATA),
        ("23505", ErrorKind.DATA),
        ("21000", ErrorKind.DATA),
        ("0A000", ErrorKind.UNSUPPORTED),
        ("42601", ErrorKind.OTHER),
    ],
)
def test_every_sqlstate_of_postgresql_has_its_class(code: str, kind: ErrorKind):
    assert postgres.kind_of(code) is kind


@pytest.mark.covers("BX-012")
@pytest.mark.parametrize(
    "number, state, kind",
    [
        (1040, "08004", ErrorKind.THROTTLED),
        (1045, "28000", ErrorKind.TOKEN),
        (1142, "42000", ErrorKind.PERMISSION),
        (1205, "HY000", ErrorKind.DEADLOCK),
        (1213, "40001", ErrorKind.DEADLOCK),
        (1153, "08S01", ErrorKind.TOO_BIG),
        (1969, "70100", ErrorKind.TOO_BIG),
        (2013, None, ErrorKind.CONNECTION),
        (1146, "42S02", ErrorKind.RACE),
        (1644, "45000", ErrorKind.BUSINESS),
        (9999, "45001", ErrorKind.BUSINESS),
        (1364, "HY000", ErrorKind.DATA),
        (9999, "22003", ErrorKind.DATA),
        (9999, "HY000", ErrorKind.OTHER),
    ],
)
def test_every_error_of_mariadb_has_its_class(number: int, state: str | None, kind: ErrorKind):
    assert mariadb.kind_of(number, state) is kind


@pytest.mark.parametrize("code, limit", [("53300", Limit.CONCURRENCY), ("53400", None)])
def test_postgresql_without_room_for_a_connection_is_a_limit_of_concurrency(code: str, limit: Limit | None):
    error = postgres.described(code, "too many connections for role", {})
    assert (error.kind, error.limit) == (ErrorKind.THROTTLED, limit)
    assert error.retry_after_s == (FULL_WAIT_S if limit else None)


@pytest.mark.parametrize(
    "number, message, limit",
    [
        (1040, "Too many connections", Limit.CONCURRENCY),
        (1203, "User a already has more than 'max_user_connections' active connections", Limit.CONCURRENCY),
        (1226, "User 'a' has exceeded the 'max_user_connections' resource (current value: 2)", Limit.CONCURRENCY),
        (1226, "User 'a' has exceeded the 'max_queries_per_hour' resource (current value: 2)", None),
    ],
)
def test_mariadb_without_room_for_a_connection_is_a_limit_of_concurrency(
    number: int, message: str, limit: Limit | None
):
    error = mariadb.refusal(number, "42000", message)
    assert (error.kind, error.limit) == (ErrorKind.THROTTLED, limit)
    assert error.retry_after_s == (FULL_WAIT_S if limit else None)


@pytest.mark.parametrize(
    "name, message, kind",
    [
        ("SQLITE_CONSTRAINT_UNIQUE", "UNIQUE constraint failed: t.a", ErrorKind.DATA),
        ("SQLITE_CONSTRAINT_TRIGGER", "no", ErrorKind.BUSINESS),
        ("SQLITE_BUSY_SNAPSHOT", "database is locked", ErrorKind.DEADLOCK),
        ("SQLITE_READONLY", "attempt to write a readonly database", ErrorKind.PERMISSION),
        ("SQLITE_ERROR", "no such table: main.t", ErrorKind.RACE),
        ("SQLITE_ERROR", "table t has no column named x", ErrorKind.RACE),
        ("SQLITE_ERROR", "near x: syntax error", ErrorKind.OTHER),
        ("SQLITE_CORRUPT", "database disk image is malformed", ErrorKind.OTHER),
    ],
)
def test_every_error_of_sqlite_has_its_class(name: str, message: str, kind: ErrorKind):
    assert sqlite.kind_of(name, message) is kind


@pytest.mark.parametrize(
    "facts, rows",
    [
        ({"code": "23514", "context": "COPY products, line 3"}, [2]),
        ({"code": "22001", "context": 'COPY shop.products, line 2, column name: "x"'}, [1]),
        ({"code": "22001", "context": "COPY produkte, Zeile 4, Spalte name"}, [3]),
        ({"code": "23514", "context": "COPY products, line 99"}, []),
        ({"code": "23502", "column": "name"}, [1]),
        ({"code": "23502", "column": "other"}, []),
        ({"code": "22001"}, [2]),
        ({"code": "23505", "detail": "Key (id)=(4) already exists."}, [3]),
        ({"code": "23505", "detail": "Schlüssel (name, parent)=(a, 9) existiert bereits."}, [0]),
        ({"code": "23503", "detail": 'Key (parent)=(9) is not present in table "parents".'}, [0, 2]),
        ({"code": "23505", "detail": "Key (lower(name))=(a) already exists."}, []),
        ({"code": "40P01", "detail": "Process (1)=(2) waits"}, []),
    ],
)
def test_what_postgresql_tells_beside_an_error_points_at_rows(facts: dict[str, str], rows: list[int]):
    given = {"column": None, "detail": None, "context": None, **facts}
    assert postgres.suspects(SHEET, TABLE, **given) == rows


@pytest.mark.parametrize(
    "number, message, is_insert, rows",
    [
        (1406, "Data too long for column 'name' at row 3", True, [2]),
        (1406, "Data too long for column 'name' at row 3", False, []),
        (1406, "Data too long for column 'name' at row 9", True, []),
        (1048, "Column 'name' cannot be null", True, [1]),
        (1062, "Duplicate entry '4' for key 'PRIMARY'", True, [3]),
        (1062, "Duplicate entry 'a-9' for key 'by_name'", True, [0]),
        (1062, "Duplicate entry 'a' for key 'unknown'", True, []),
        (4025, "CONSTRAINT `positive` failed for `shop`.`products`", True, []),
    ],
)
def test_what_mariadb_tells_in_an_error_points_at_rows(number: int, message: str, is_insert: bool, rows: list[int]):
    error = mariadb.refusal(number, "23000", message)
    assert mariadb.suspects(error, SHEET, TABLE, is_insert=is_insert) == rows


@pytest.mark.parametrize(
    "message, field, constraint",
    [
        ("Data too long for column 'name' at row 3", "name", None),
        ("Incorrect integer value: 'x' for column `shop`.`products`.`id` at row 1", "id", None),
        ("Field 'name' doesn't have a default value", "name", None),
        ("Duplicate entry 'a-9' for key 'by_name'", None, "by_name"),
        ("CONSTRAINT `positive` failed for `shop`.`products`", None, "positive"),
    ],
)
def test_errors_of_mariadb_name_their_column_or_constraint(message: str, field: str | None, constraint: str | None):
    error = mariadb.refusal(1366, "HY000", message)
    assert (error.field, error.details.get("constraint")) == (field, constraint)


@pytest.mark.parametrize(
    "column, value, says",
    [
        ("id", "5", "column 'id' takes integer, not str"),
        ("id", 2**40, "column 'id' takes integer, and the number is too large"),
        ("name", 5, "column 'name' takes character varying(5), not int"),
        ("name", "a\0b", "column 'name' takes character varying(5), and the text holds a character"),
        ("name", "\ud800", "column 'name' takes character varying(5), and the text holds a character"),
        ("tags", "a", "column 'tags' takes text[], not str"),
        ("price", [], "column 'price' takes numeric(8,2), not list"),
    ],
)
def test_a_value_the_driver_cannot_send_is_named_with_its_column(column: str, value: object, says: str):
    found = wrong_types(RowGroup.of((column,), [(None,), (value,)], range(2)), TABLE)
    assert list(found) == [1]
    assert found[1].message.startswith(says)
    assert found[1].field == column


@pytest.mark.parametrize(
    "column, value",
    [("id", -(2**31)), ("id", True), ("name", "é"), ("tags", ["a"]), ("price", Decimal(1)), ("price", "1")],
)
def test_a_value_the_driver_can_send_is_not_blamed(column: str, value: object):
    assert not wrong_types(RowGroup.of((column,), [(value,)], range(1)), TABLE)
