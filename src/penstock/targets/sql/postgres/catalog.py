"""What PostgreSQL knows of a table, in one question."""

from __future__ import annotations

import re
from typing import Any

from penstock.targets.sql.table import Column, Table, ansi, no_such_table, split_name
from penstock.targets.sql.values import (
    Step,
    approximate,
    as_uuid,
    boolean,
    decimal,
    lower,
    rounded,
    single,
    unpadded,
    whole,
)

__all__ = ["read_table"]

KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "i": "an index", "S": "a sequence"}

FOLDS: dict[str, Step] = {"uuid": as_uuid, "citext": lower, "bpchar": unpadded, "character": unpadded, "real": single}
FROM_TEXT: dict[str, Step] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), whole),
    **dict.fromkeys(("real", "double precision"), approximate),
    "numeric": decimal,
    "boolean": boolean,
}
NUMBERS = ("smallint", "integer", "bigint", "real", "double precision", "numeric")
SPELLED_ONE_WAY = frozenset((*NUMBERS, "boolean", "uuid", "text", "character varying", "bpchar", "character"))
"""Types of which the fold tells values apart exactly as the server does, unless the collation is an odd one."""
SCALE = re.compile(r",(-?\d+)\)")

# Domains are taken apart to the type under them, so that their checks speak of one row and not of a whole array.
TABLE = """
WITH RECURSIVE bases (attnum, oid, typmod) AS (
    SELECT attnum, atttypid, atttypmod FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0
  UNION ALL
    SELECT b.attnum, t.typbasetype, t.typtypmod FROM bases b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
)
SELECT c.relkind::text, n.nspname AS schema, c.relname AS name, c.relrowsecurity AS has_row_security,
  coalesce(triggers.of_inserts, false) AS has_insert_trigger,
  coalesce(triggers.of_updates, false) AS has_update_trigger,
  (SELECT json_agg(json_build_object(
      'name', a.attname,
      'type', format_type(t.oid, -1),
      'full_type', format_type(t.oid, b.typmod),
      'default', coalesce(pg_get_expr(d.adbin, d.adrelid), CASE WHEN a.attidentity <> '' AND
          has_sequence_privilege(pg_get_serial_sequence(to_regclass($1)::text, a.attname), 'USAGE') THEN
          format('nextval(%L::regclass)', pg_get_serial_sequence(to_regclass($1)::text, a.attname)) END),
      'is_generated', a.attgenerated <> '',
      'is_required', a.attnotnull AND d.adbin IS NULL AND a.attidentity = '',
      'is_array', t.typcategory = 'A',
      'is_read_by_server', t.typcategory IN ('A', 'C', 'D', 'G', 'I', 'R', 'T', 'V', 'Z')
          OR t.typname IN ('bytea', 'oid', 'pg_lsn', 'xid8'),
      'is_copied_as_text', e.typtype = 'b' AND (e.typnamespace <> 'pg_catalog'::regnamespace OR e.typname LIKE 'reg%'
          OR e.typname IN ('aclitem', 'macaddr', 'macaddr8', 'money', 'refcursor', 'tsquery', 'tsvector')),
      'is_user_defined', e.typnamespace <> 'pg_catalog'::regnamespace,
      'is_text', t.typcategory = 'S',
      'is_loose', EXISTS (SELECT FROM pg_collation o WHERE o.oid = a.attcollation AND NOT o.collisdeterministic),
      'length_max', CASE WHEN t.typname IN ('varchar', 'bpchar') AND b.typmod > 4 THEN b.typmod - 4 END
    ) ORDER BY a.attnum)
    FROM pg_attribute a
    JOIN bases b ON b.attnum = a.attnum
    JOIN pg_type t ON t.oid = b.oid AND t.typtype <> 'd'
    JOIN pg_type e ON e.oid = CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE t.oid END
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
  (SELECT json_agg(json_build_object('is_primary', i.indisprimary, 'columns', (
      SELECT json_agg(a.attname ORDER BY k.place)
      FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
      WHERE k.place <= i.indnkeyatts)))
    FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indpred IS NULL AND i.indexprs IS NULL) AS keys,
  (SELECT json_agg((
      SELECT json_agg(a.attname) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (o.conkey)))
    FROM pg_constraint o WHERE o.conrelid = c.oid AND o.contype = 'c' AND o.conkey <> '{}') AS checks
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
LATERAL (SELECT bool_or(g.tgtype & 7 = 7) AS of_inserts, bool_or(g.tgtype & 19 = 19) AS of_updates
  FROM pg_trigger g
  WHERE NOT g.tgisinternal AND (g.tgrelid = c.oid OR g.tgrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))
) AS triggers
WHERE c.oid = to_regclass($1)
"""


async def read_table(connection: Any, name: str) -> Table:
    """The table of that name as the connection's search path finds it."""
    schema, plain = split_name(name)
    found = await connection.fetchrow(TABLE, ".".join(ansi(part) for part in (schema, plain) if part))
    if found is None:
        raise no_such_table(name)
    if found["relkind"] not in ("r", "p"):
        raise no_such_table(name, KINDS.get(found["relkind"], "something else"))
    columns = [_column(given) for given in found["columns"] or []]
    keys = found["keys"] or []
    return Table(
        schema=found["schema"],
        name=found["name"],
        columns={column.name: column for column in columns},
        primary_key=next((tuple(key["columns"]) for key in keys if key["is_primary"]), ()),
        unique_keys=tuple(tuple(key["columns"]) for key in keys),
        # Rows of partitioned tables have no `xmax` to look at before version 18.
        reads_before=found["relkind"] == "p" and connection.get_server_version().major < 18,
        has_row_security=found["has_row_security"],
        has_insert_trigger=found["has_insert_trigger"],
        has_update_trigger=found["has_update_trigger"],
        checks=tuple(map(tuple, found["checks"] or ())),
    )


def _column(given: dict[str, Any]) -> Column:
    default = None if given["is_generated"] else given["default"]
    fold, from_text = _fold(given["type"], given["full_type"]), FROM_TEXT.get(given["type"])
    is_loose = given["is_loose"] or given["type"] not in SPELLED_ONE_WAY
    return Column(**{**given, "default": default, "fold": fold, "from_text": from_text, "is_loose": is_loose})


def _fold(kind: str, full: str) -> Step | None:
    """How the type compares, where Python compares otherwise."""
    if kind == "numeric" and (scale := SCALE.search(full)):
        return rounded(int(scale[1]))
    return FOLDS.get(kind)
