"""What only PostgreSQL has: COPY, stages, partitions, arrays, identities, sessions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
from sql_places import Place, batch, outcomes

from penstock.targets import BulkExecutor, RetryPolicy
from penstock.targets.model import ErrorKind, Mode, Outcome, TargetError
from penstock.targets.sql.postgres.row_by_row import ROWS_MAX, portions
from penstock.targets.sql.postgres.statements import Plan, from_arrays
from penstock.targets.sql.postgres.writing import STAGE_FROM
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Column, Table

pytestmark = pytest.mark.databases("postgresql")
MANY = STAGE_FROM + 500


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, **more}


@pytest.mark.covers("BX-001")
async def test_large_batches_are_answered_record_by_record_too(place: Place):
    await place.products()
    created = await place.send(Mode.CREATE, [product(n) for n in range(MANY - 1, -1, -1)])
    assert [verdict.id for verdict in created.verdicts] == list(range(MANY - 1, -1, -1))
    numbers = range(1, 2 * MANY, 2)
    mixed = await place.send(Mode.UPSERT, [product(n, note="x") for n in numbers])
    assert outcomes(mixed) == ["updated" if n < MANY else "created" for n in numbers]
    updated = await place.send(Mode.UPDATE, [product(n, note="y") for n in range(MANY + 10)])
    expected = ["updated" if n < MANY or n % 2 else "NOT_FOUND" for n in range(MANY + 10)]
    assert outcomes(updated) == expected
    deleted = await place.send(Mode.DELETE, list(range(MANY + 10)))
    assert outcomes(deleted) == [outcome.replace("updated", "deleted") for outcome in expected]


async def test_a_large_batch_of_generated_ids_keeps_its_order(place: Place):
    await place.make("notes", "CREATE TABLE notes (id bigserial PRIMARY KEY, body text)")
    answer = await place.send(Mode.CREATE, [{"body": str(n)} for n in range(MANY)], table="notes")
    held = dict(await place.rows("SELECT id, body FROM notes"))
    assert [held[verdict.id] for verdict in answer.verdicts] == [str(n) for n in range(MANY)]


async def test_a_large_batch_in_which_keys_come_twice_is_applied_in_order(place: Place):
    await place.products()
    records = [product(n % MANY, note=str(n // MANY)) for n in range(2 * MANY)]
    answer = await place.send(Mode.UPSERT, records)
    assert outcomes(answer) == ["created"] * MANY + ["updated"] * MANY
    assert await place.rows("SELECT note, count(*) FROM products GROUP BY note") == [("1", MANY)]


async def test_columns_that_hold_lists_are_written_whole(place: Place):
    await place.make("posts", "CREATE TABLE posts (id integer PRIMARY KEY, tags text[], grid integer[][])")
    records = [{"id": n % 2, "tags": ["a", str(n)], "grid": [[n, 2], [3, 4]]} for n in range(4)]
    assert outcomes(await place.send(Mode.UPSERT, records, table="posts")) == ["created"] * 2 + ["updated"] * 2
    await place.send(Mode.UPDATE, [{"id": 0, "tags": []}, {"id": 1, "tags": None}], table="posts")
    assert await place.rows("SELECT * FROM posts ORDER BY id") == [
        (0, [], [[2, 2], [3, 4]]),
        (1, None, [[3, 2], [3, 4]]),
    ]


async def test_rows_of_a_partitioned_table_are_told_apart_by_what_was_there_before(place: Place):
    await place.make("events", "CREATE TABLE events (id integer PRIMARY KEY, what text) PARTITION BY RANGE (id)")
    await place.run("CREATE TABLE events_low PARTITION OF events FOR VALUES FROM (0) TO (10)")
    await place.run("CREATE TABLE events_high PARTITION OF events FOR VALUES FROM (10) TO (20)")
    await place.send(Mode.CREATE, [{"id": n, "what": "old"} for n in (3, 13)], table="events")
    answer = await place.send(Mode.UPSERT, [{"id": n, "what": "new"} for n in (14, 13, 3, 4)], table="events")
    assert outcomes(answer) == ["created", "updated", "updated", "created"]
    (version,) = (await place.rows("SELECT current_setting('server_version_num')::int / 10000"))[0]
    assert answer.counts_exact == (version >= 18)
    assert outcomes(await place.send(Mode.DELETE, [13, 5], table="events")) == ["deleted", "NOT_FOUND"]


@pytest.mark.parametrize("server, sign", [(15, "xmax = 0"), (17, "xmax = 0"), (18, "old IS NULL")])
def test_what_tells_a_new_row_depends_on_the_server(database_kind: str, server: int, sign: str):
    table = Table("public", "t", {"id": Column("id", "integer", "integer"), "a": Column("a", "text", "text")}, ("id",))
    plan = Plan(table, ("id",), ("id", "a"), server=server)
    assert sign in plan.write(Mode.UPSERT, from_arrays(list(table.columns.values())))


KEYS = {
    "char(5)": ["a", "b "],
    "numeric(10,2)": [Decimal("1.001"), Decimal(2)],
    "timestamptz(0)": [datetime(2024, 1, 1, 0, 0, 0, 300, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)],
    "uuid": [str(UUID(int=1)), UUID(int=2)],
    "varchar(3)": ["abc  ", "x"],
    "float4": [0.1, 0.2],
}


@pytest.mark.parametrize("kind", KEYS)
async def test_keys_that_are_stored_otherwise_than_sent_are_still_told_apart(place: Place, kind: str):
    await place.make("things", f"CREATE TABLE things (k {kind} PRIMARY KEY, v integer)")
    first, second = KEYS[kind]
    assert outcomes(await place.send(Mode.UPSERT, [{"k": first, "v": 1}], table="things")) == ["created"]
    again = await place.send(Mode.UPSERT, [{"k": second, "v": 2}, {"k": first, "v": 2}], table="things")
    assert outcomes(again) == ["created", "updated"]


async def test_keys_made_by_an_expression_are_known(place: Place):
    await place.make("things", "CREATE TABLE things (k uuid PRIMARY KEY DEFAULT gen_random_uuid(), v integer)")
    answer = await place.send(Mode.CREATE, [{"v": n} for n in range(20)], table="things")
    held = dict(await place.rows("SELECT k, v FROM things"))
    assert [held[verdict.id] for verdict in answer.verdicts] == list(range(20))


async def test_a_given_id_wins_over_one_the_database_always_makes(place: Place):
    await place.make("notes", "CREATE TABLE notes (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text)")
    assert outcomes(await place.send(Mode.UPSERT, [{"id": 7, "body": "a"}], table="notes")) == ["created"]
    await place.send(Mode.CREATE, [{"id": 8, "body": "b"}], table="notes")
    assert await place.rows("SELECT id FROM notes ORDER BY id") == [(7,), (8,)]


async def test_the_check_of_a_domain_speaks_of_one_record(place: Place):
    await place.run("DROP DOMAIN IF EXISTS even CASCADE")
    await place.run("CREATE DOMAIN even AS integer CHECK (VALUE % 2 = 0)")
    await place.make("pairs", "CREATE TABLE pairs (id integer PRIMARY KEY, n even)")
    records = [{"id": n, "n": n} for n in range(4)]
    assert (await place.refused(Mode.UPSERT, records, table="pairs")).code == "23514"
    answer = await place.send(Mode.UPSERT, records, table="pairs", each=True)
    assert outcomes(answer) == ["created", "23514", "created", "23514"]


async def test_only_the_same_bytes_are_unchanged_whatever_the_collation_says(place: Place):
    await place.run("DROP COLLATION IF EXISTS caseless CASCADE")
    await place.run("CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    await place.make("words", "CREATE TABLE words (id integer PRIMARY KEY, w text COLLATE caseless, j json)")
    await place.send(Mode.CREATE, [{"id": 1, "w": "a", "j": "[1]"}, {"id": 2, "w": "a", "j": "[1]"}], table="words")
    records = [{"id": 1, "w": "A", "j": "[1]"}, {"id": 2, "w": "a", "j": "[1]"}]
    answer = await place.send(Mode.UPSERT, records, table="words", update_only_changed=True)
    assert outcomes(answer) == ["updated", "unchanged"]


async def test_unchanged_rows_are_not_even_locked_anew(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    before = await place.rows("SELECT ctid::text, xmin::text FROM products ORDER BY id")
    for mode in (Mode.UPDATE, Mode.UPSERT):
        await place.send(mode, [product(1), product(2)], update_only_changed=True)
    assert await place.rows("SELECT ctid::text, xmin::text FROM products ORDER BY id") == before


async def test_a_partial_record_can_change_a_row_it_could_not_create(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1)])
    assert outcomes(await place.send(Mode.UPSERT, [{"id": 1, "price": 9}])) == ["updated"]
    error = await place.refused(Mode.UPSERT, [{"id": 1, "price": 8}, {"id": 2, "price": 8}])
    assert (error.code, error.field) == ("23502", "name")
    answer = await place.send(Mode.UPSERT, [{"id": 1, "price": 8}, {"id": 2, "price": 8}], each=True)
    assert outcomes(answer) == ["updated", "23502"]


async def test_a_partial_record_can_change_a_row_whose_table_checks_columns_it_does_not_name(place: Place):
    await place.make(
        "people",
        "CREATE TABLE people (id integer PRIMARY KEY, name text, email text, phone text,"
        " CHECK (email IS NOT NULL OR phone IS NOT NULL), CHECK (name <> ''))",
    )
    await place.run("INSERT INTO people VALUES (1, 'Ada', 'ada@example.org', NULL)")
    changed = await place.send(Mode.UPSERT, [{"id": 1, "name": "Ada L."}], table="people")
    assert outcomes(changed) == ["updated"]
    answer = await place.send(
        Mode.UPSERT, [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}], table="people", each=True
    )
    assert outcomes(answer) == ["updated", "23514"]


async def test_a_type_can_be_replaced_while_connections_that_have_staged_it_are_idle(place: Place):
    await place.run("DROP TYPE IF EXISTS mood CASCADE")
    await place.run("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    await place.make("moods", "CREATE TABLE moods (id integer PRIMARY KEY, mood mood, before mood[])")
    records = [{"id": n, "mood": "glad", "before": ["sad"]} for n in range(MANY)]
    assert set(outcomes(await place.send(Mode.UPSERT, records, table="moods"))) == {"created"}
    await place.run("ALTER TYPE mood RENAME TO old_mood")
    await place.run("CREATE TYPE mood AS ENUM ('sad', 'glad', 'calm')")
    for column, kind in (("mood", "mood"), ("before", "mood[]")):
        await place.run(f"ALTER TABLE moods ALTER {column} TYPE {kind} USING {column}::text::{kind}")
    await place.run("DROP TYPE old_mood")
    executor = BulkExecutor(place.target, policy=RetryPolicy(wait_first_s=0.01))
    result = await executor.upsert_multiple("moods", [record | {"mood": "calm"} for record in records])
    assert (result.updated_count, result.errors) == (MANY, [])


async def test_a_table_with_row_security_takes_new_rows_without_copy(place: Place):
    await place.products()
    await place.run("ALTER TABLE products ENABLE ROW LEVEL SECURITY")
    await place.run("ALTER TABLE products FORCE ROW LEVEL SECURITY")
    await place.run("CREATE POLICY all_of_them ON products USING (true)")
    answer = await place.send(Mode.CREATE, [product(2), product(1)])
    assert [(verdict.outcome, verdict.id) for verdict in answer.verdicts] == [
        (Outcome.CREATED, 2),
        (Outcome.CREATED, 1),
    ]


async def _record_settings(place: Place) -> None:
    """Rows that note the settings of the session that wrote them."""
    await place.make("seen", "CREATE TABLE seen (id integer PRIMARY KEY, name text, value text)")
    await place.run(
        """CREATE OR REPLACE FUNCTION penstock_look() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.value = current_setting(NEW.name); RETURN NEW; END $$"""
    )
    await place.run("CREATE TRIGGER look BEFORE INSERT ON seen FOR EACH ROW EXECUTE FUNCTION penstock_look()")


async def test_a_batch_runs_under_the_session_settings_asked_for(place: Place):
    await _record_settings(place)
    names = ("application_name", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    settings = {"application_name": "nightly", "statement_timeout_s": 7.5, "lock_timeout_s": 3, "idle_timeout_s": 9}
    target = place.new_target(**settings)
    await target.send(
        batch(Mode.CREATE, [{"id": n, "name": name} for n, name in enumerate(names)], table="seen"), "default"
    )
    assert [value for (value,) in await place.rows("SELECT value FROM seen ORDER BY id")] == [
        "nightly",
        "7500ms",
        "3s",
        "9s",
    ]


@pytest.mark.parametrize("is_synchronous, setting", [(True, "on"), (False, "off")])
async def test_commits_wait_for_the_disk_unless_told_otherwise(place: Place, is_synchronous: bool, setting: str):
    await _record_settings(place)
    target = place.new_target(synchronous_commit=is_synchronous)
    await target.send(batch(Mode.CREATE, [{"id": 1, "name": "synchronous_commit"}], table="seen"), "default")
    assert await place.rows("SELECT value FROM seen") == [(setting,)]


async def _refused(place: Place, settings: dict[str, float], mode: Mode, records: list[object]) -> TargetError:
    target = place.new_target(**settings)
    with pytest.raises(TargetError) as caught:
        await target.send(batch(mode, records), "default")
    return caught.value


async def test_a_statement_that_takes_too_long_is_too_big(place: Place):
    await place.products()
    await place.run(
        """CREATE OR REPLACE FUNCTION penstock_slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$"""
    )
    await place.run("CREATE TRIGGER slow BEFORE INSERT ON products FOR EACH ROW EXECUTE FUNCTION penstock_slow()")
    error = await _refused(place, {"statement_timeout_s": 1}, Mode.CREATE, [product(1)])
    assert (error.kind, error.code, error.maybe_applied) == (ErrorKind.TOO_BIG, "57014", False)


async def test_a_lock_that_is_not_given_in_time_is_tried_again_like_a_deadlock(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1)])
    async with place.hand() as execute:
        await execute("BEGIN")
        await execute("SELECT * FROM products FOR UPDATE")
        error = await _refused(place, {"lock_timeout_s": 0.1}, Mode.UPDATE, [product(1)])
    assert (error.kind, error.code) == (ErrorKind.DEADLOCK, "55P03")


async def test_a_lock_not_given_in_time_is_no_fault_of_the_record_sent_each(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    target = place.new_target(lock_timeout_s=0.1)
    async with place.hand() as execute:
        await execute("BEGIN")
        await execute("SELECT * FROM products WHERE id = 2 FOR UPDATE")
        with pytest.raises(TargetError) as caught:
            await target.send_each(batch(Mode.UPDATE, [product(1, note="x"), product(2, note="x")]), "default")
    assert caught.value.kind is ErrorKind.DEADLOCK
    assert await place.rows("SELECT DISTINCT note FROM products") == [("none",)]


async def test_rows_sent_each_in_an_earlier_transaction_are_not_sent_again(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(n) for n in range(100)])
    target = place.new_target(lock_timeout_s=0.1)
    given = batch(Mode.UPDATE, [product(n, note="x") for n in range(100)])
    async with place.hand() as execute:
        await execute("BEGIN")
        await execute("SELECT * FROM products WHERE id = 99 FOR UPDATE")
        with pytest.raises(TargetError) as caught:
            await target.send_each(given, "default")
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.DEADLOCK, True)
    told = await target.reconcile(given, "default")
    assert [verdict is not None for verdict in told] == [True] * ROWS_MAX + [False] * (100 - ROWS_MAX)


async def test_no_more_connections_are_opened_than_allowed(place: Place):
    await place.products()
    name = f"bounded-{uuid4()}"
    target = place.new_target(connections=2, application_name=name)
    assert (target.width, target.width_max) == (2, 2)
    await asyncio.gather(
        *(target.send(batch(Mode.CREATE, [product(b * 10 + n) for n in range(10)]), "default") for b in range(12))
    )
    assert await place.rows(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'") == [(2,)]


def test_no_transaction_holds_more_rows_than_subtransactions_are_cheap(database_kind: str):
    groups = [RowGroup(("id",), [list(range(size))], range(start, start + size)) for start, size in ((0, 50), (50, 95))]
    found = list(portions(groups))
    assert [sum(map(len, portion)) for portion in found] == [ROWS_MAX, ROWS_MAX, 25]
    assert [p for portion in found for group in portion for p in group.positions] == list(range(145))


async def test_the_message_of_a_refusal_names_the_key_and_the_hint(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1)])
    error = await place.refused(Mode.CREATE, [product(1)])
    assert error.message == (
        'duplicate key value violates unique constraint "products_pkey" (Key (id)=(1) already exists)'
    )
    await place.run(
        """CREATE OR REPLACE FUNCTION penstock_no() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'not today' USING DETAIL = 'It is Friday.', HINT = 'Come on Monday.'; END $$"""
    )
    await place.run("CREATE TRIGGER friday BEFORE INSERT ON products FOR EACH ROW EXECUTE FUNCTION penstock_no()")
    error = await place.refused(Mode.CREATE, [product(2)])
    assert error.message == "not today (It is Friday; hint: Come on Monday)"
    answer = await place.send(Mode.CREATE, [product(2), product(3)], each=True)
    assert [v.error.message for v in answer.verdicts if v.error] == [error.message] * 2


async def test_a_message_does_not_repeat_the_whole_row(place: Place):
    await place.products()
    error = await place.refused(Mode.CREATE, [{"id": 1, "name": None, "price": 3}])
    assert "Failing row" not in error.message


TEXT_ONLY = {
    "citext": "Ab",
    "hstore": '"a"=>"1"',
    "tsvector": "'a' 'b'",
    "money": "$1.50",
    "macaddr": "08:00:2b:01:02:03",
    "regclass": "kept",
    "citext[]": ["Ab", "c"],
}


@pytest.mark.parametrize("kind", TEXT_ONLY)
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPSERT])
@pytest.mark.parametrize("count", [10, MANY])
async def test_types_that_the_driver_cannot_copy_are_written_like_others(
    place: Place, kind: str, mode: Mode, count: int
):
    for extension in ("citext", "hstore"):
        await place.run(f"CREATE EXTENSION IF NOT EXISTS {extension}")
    await place.make("kept", f"CREATE TABLE kept (id integer PRIMARY KEY, value {kind}, n integer CHECK (n < {count}))")
    records = [{"id": n, "value": TEXT_ONLY[kind] if n else None, "n": n} for n in range(count)]
    assert outcomes(await place.send(mode, records, table="kept")) == ["created"] * count
    assert await place.rows("SELECT count(value) FROM kept") == [(count - 1,)]
    more = [{"id": count, "value": TEXT_ONLY[kind], "n": 1}, {"id": count + 1, "value": TEXT_ONLY[kind], "n": count}]
    each = await place.target.send_each(batch(mode, more, table="kept"), "default")
    assert outcomes(each) == ["created", "23514"]


@pytest.mark.parametrize("kind", TEXT_ONLY)
@pytest.mark.parametrize("only_changed", [False, True])
@pytest.mark.parametrize("count", [10, MANY])
async def test_types_that_the_driver_cannot_copy_are_updated_like_others(
    place: Place, kind: str, only_changed: bool, count: int
):
    for extension in ("citext", "hstore"):
        await place.run(f"CREATE EXTENSION IF NOT EXISTS {extension}")
    await place.make("kept", f"CREATE TABLE kept (id integer PRIMARY KEY, value {kind}, n integer CHECK (n < {count}))")
    value = TEXT_ONLY[kind]
    await place.send(Mode.CREATE, [{"id": n, "value": value if n % 2 else None} for n in range(count)], table="kept")
    records = [{"id": n, "value": value if n else None} for n in range(count + 1)]
    answer = await place.send(Mode.UPDATE, records, table="kept", update_only_changed=only_changed)
    alike = "unchanged" if only_changed else "updated"
    assert outcomes(answer) == [alike if n == 0 or n % 2 else "updated" for n in range(count)] + ["NOT_FOUND"]
    assert await place.rows("SELECT count(value) FROM kept") == [(count - 1,)]
    more = [{"id": 0, "value": value, "n": 1}, {"id": 1, "value": None, "n": count}, {"id": count, "value": value}]
    each = await place.send(Mode.UPDATE, more, table="kept", each=True, update_only_changed=only_changed)
    assert outcomes(each) == ["updated", "23514", "NOT_FOUND"]
    assert await place.rows("SELECT count(value) FROM kept") == [(count,)]


NAMES = ("is_new", "penstock_ord", "outcome", "xid", "written", "given", "g", "penstock_i", "penstock_outcome")


@pytest.mark.parametrize("key", ["is_new", "penstock_ord", "penstock_i", "xid"])
@pytest.mark.parametrize("count, each", [(3, False), (MANY, False), (70, True)], ids=["arrays", "staged", "each"])
async def test_columns_may_have_the_names_that_statements_use(place: Place, key: str, count: int, each: bool):
    columns = ", ".join(f"{name} integer{' PRIMARY KEY' if name == key else ''}" for name in NAMES)
    await place.make("odd", f"CREATE TABLE odd ({columns})")
    steps = [
        (Mode.CREATE, range(0, count, 2), ["created"] * len(range(0, count, 2))),
        (Mode.UPSERT, range(count), ["updated" if n % 2 == 0 else "created" for n in range(count)]),
        (Mode.UPDATE, range(count + 1), ["updated"] * count + ["NOT_FOUND"]),
    ]
    for added, (mode, numbers, expected) in enumerate(steps):
        records = [{name: n if name == key else n + added for name in NAMES} for n in numbers]
        assert outcomes(await place.send(mode, records, table="odd", each=each)) == expected
        wanted = [tuple(record.values()) for record in records[:count]]
        assert await place.rows(f"SELECT {', '.join(NAMES)} FROM odd ORDER BY {key}") == wanted
    made = await place.send(Mode.CREATE, [dict.fromkeys(NAMES, count)], table="odd", each=each)
    assert [verdict.id for verdict in made.verdicts] == [count]
    unchanged = [{name: n if name == key else n + 2 for name in NAMES} for n in range(count)]
    again = await place.send(Mode.UPSERT, unchanged, table="odd", each=each, update_only_changed=True)
    assert outcomes(again) == ["unchanged"] * count
    deleted = await place.send(Mode.DELETE, list(range(count)), table="odd", each=each)
    assert outcomes(deleted) == ["deleted"] * count


async def test_a_role_that_may_only_insert_can_create(place: Place):
    await place.make("inbox", "CREATE TABLE inbox (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text)")
    await place.run(
        "DO $$ BEGIN IF to_regrole('writer') IS NOT NULL THEN DROP OWNED BY writer; DROP ROLE writer; END IF; END $$"
    )
    await place.run("CREATE ROLE writer LOGIN PASSWORD 'writer'")
    await place.run("GRANT INSERT ON inbox TO writer")
    target = place.new_target(place.url.replace("penstock:penstock@", "writer:writer@"))
    answer = await target.send(batch(Mode.CREATE, [{"body": "a"}, {"body": "b"}], table="inbox"), "default")
    assert outcomes(answer) == ["created", "created"]
    assert await place.rows("SELECT body FROM inbox ORDER BY id") == [("a",), ("b",)]


@pytest.mark.parametrize("before, after", [("bigint", "double precision"), ("integer", "real"), ("integer", "text")])
async def test_numbers_are_stored_rightly_after_their_column_got_another_type(place: Place, before: str, after: str):
    await place.make("sizes", f"CREATE TABLE sizes (id integer PRIMARY KEY, size {before})")
    target = place.new_target(connections=1)
    assert (await target.create_multiple("sizes", [{"id": 1, "size": 1}])).is_success
    await place.run(f"ALTER TABLE sizes DROP COLUMN size, ADD COLUMN size {after}")
    policy = RetryPolicy(wait_first_s=0)
    result = await BulkExecutor(target, policy=policy).create_multiple("sizes", [{"id": 2, "size": as_type(after, 7)}])
    assert result.is_success, result.errors
    assert await place.rows("SELECT size::text FROM sizes WHERE id = 2") == [("7",)]


def as_type(kind: str, number: int) -> object:
    return str(number) if kind == "text" else number
