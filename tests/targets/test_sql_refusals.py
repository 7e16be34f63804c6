"""Records that a table refuses: batches fail whole, suspects are named, and each can be sent alone."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sql_places import Place, outcomes

from penstock.targets import BulkExecutor
from penstock.targets.model import ErrorKind, Mode, Outcome


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, "code": f"c-{n}", **more}


BAD = {
    "too long": product(50, name="x" * 21),
    "below zero": product(50, price=-1),
    "null": product(50, name=None),
    "taken": product(50, code="taken"),
}


@pytest.mark.covers("BX-035")
@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPSERT, Mode.UPDATE])
async def test_a_bad_record_fails_its_batch_whole(place: Place, mode: Mode, fault: str):
    await place.products()
    await place.send(Mode.CREATE, [product(999, code="taken")])
    if mode is Mode.UPDATE:
        await place.send(Mode.CREATE, [product(n) for n in range(100)])
    before = await place.rows("SELECT * FROM products ORDER BY id")
    records = [product(n, note="sent") for n in range(100)]
    records[70] = {**BAD[fault], "id": 70, "note": "sent"}
    error = await place.refused(mode, records)
    assert error.kind is ErrorKind.DATA
    assert error.code
    assert error.suspects in ((), (70,))
    assert await place.rows("SELECT * FROM products ORDER BY id") == before


@pytest.mark.parametrize(
    "fault, databases",
    [
        ("too long", ("postgresql", "mariadb", "sqlite")),
        ("null", ("postgresql", "mariadb", "sqlite")),
        ("taken", ("postgresql", "mariadb", "sqlite")),
        ("below zero", ("postgresql", "sqlite")),  # MariaDB does not say which
    ],
)
async def test_a_bad_record_among_new_ones_is_named(place: Place, fault: str, databases: tuple[str, ...]):
    await place.products()
    await place.send(Mode.CREATE, [product(999, code="taken")])
    records = [product(99 - n) for n in range(100)]
    records[70] = {**BAD[fault], "id": 29}
    error = await place.refused(Mode.CREATE, records)
    assert error.suspects == ((70,) if place.kind in databases else ())


@pytest.mark.covers("BX-111")
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPSERT, Mode.UPDATE])
async def test_sent_each_every_bad_record_has_its_own_error_and_the_rest_is_written(place: Place, mode: Mode):
    await place.products()
    await place.send(Mode.CREATE, [product(999, code="taken")])
    good = {"create": "created", "upsert": "created", "update": "updated"}[mode]
    if mode is Mode.UPDATE:
        await place.send(Mode.CREATE, [product(n) for n in range(150)])
    records = [product(n, note="sent") for n in range(150)]  # more than one transaction's worth
    for at, bad in zip((0, 70, 71, 149), BAD.values(), strict=True):
        records[at] = {**bad, "id": at, "note": "sent"}
    answer = await place.send(mode, records, each=True)
    failed = [at for at, verdict in enumerate(answer.verdicts) if verdict.outcome is Outcome.FAILED]
    assert failed == [0, 70, 71, 149]
    assert len({str(answer.verdicts[at].error) for at in failed}) == 4
    assert {verdict.outcome for at, verdict in enumerate(answer.verdicts) if at not in failed} == {good}
    assert await place.rows("SELECT count(*) FROM products WHERE note = 'sent'") == [(146,)]


async def test_errors_say_what_was_violated(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1, code="taken")])
    error = await place.refused(Mode.CREATE, [product(2, code="taken")])
    expected = {
        "postgresql": ("23505", "products_code_key"),
        "mariadb": ("1062", "code"),
        "sqlite": ("SQLITE_CONSTRAINT_UNIQUE", "products.code"),
    }
    assert (error.code, error.details["constraint"]) == expected[place.kind]
    nameless = await place.refused(Mode.CREATE, [product(2, name=None)])
    assert nameless.field == "name"


async def test_what_a_trigger_says_is_a_business_error_of_that_record(place: Place):
    await place.products()
    trigger = {
        "postgresql": """CREATE OR REPLACE FUNCTION penstock_no() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.price = 13 THEN RAISE 'not on a Friday'; END IF; RETURN NEW; END $$;
            CREATE TRIGGER friday BEFORE INSERT ON products FOR EACH ROW EXECUTE FUNCTION penstock_no()""",
        "mariadb": """CREATE TRIGGER friday BEFORE INSERT ON products FOR EACH ROW
            IF NEW.price = 13 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not on a Friday'; END IF""",
        "sqlite": """CREATE TRIGGER friday BEFORE INSERT ON products WHEN NEW.price = 13
            BEGIN SELECT RAISE(ABORT, 'not on a Friday'); END""",
    }
    for statement in trigger[place.kind].split(";\n") if place.kind == "postgresql" else [trigger[place.kind]]:
        await place.run(statement)
    error = await place.refused(Mode.CREATE, [product(12), product(13)])
    assert (error.kind, error.message) == (ErrorKind.BUSINESS, "not on a Friday")
    answer = await place.send(Mode.CREATE, [product(12), product(13)], each=True)
    assert [v.outcome for v in answer.verdicts] == [Outcome.CREATED, Outcome.FAILED]
    assert answer.verdicts[1].error is not None
    assert answer.verdicts[1].error.kind is ErrorKind.BUSINESS


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("how", ["ABORT", "FAIL", "ROLLBACK"])
async def test_a_trigger_that_refuses_after_the_fact_leaves_nothing_of_its_record(place: Place, how: str):
    await place.products()
    await place.run(
        f"""CREATE TRIGGER friday AFTER INSERT ON products WHEN NEW.price = 13
        BEGIN SELECT RAISE({how}, 'not on a Friday'); END"""
    )
    answer = await place.send(Mode.CREATE, [product(12), product(13), product(14)], each=True)
    assert [verdict.outcome for verdict in answer.verdicts] == [Outcome.CREATED, Outcome.FAILED, Outcome.CREATED]
    assert await place.rows("SELECT id FROM products") == [(12,), (14,)]


@pytest.mark.databases("mariadb")
async def test_a_table_without_transactions_is_refused(place: Place):
    await place.make("loose", "CREATE TABLE loose (id integer PRIMARY KEY) ENGINE=MyISAM")
    error = await place.refused(Mode.CREATE, [{"id": 1}], table="loose")
    assert str(error) == "table 'loose' is kept by MyISAM, which has no transactions; InnoDB has them"


REFERENCES = {
    "postgresql": "parent integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED",
    "mariadb": "parent integer REFERENCES parents (id)",
    "sqlite": "parent integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED",
}


async def test_a_missing_parent_is_found_even_when_it_is_checked_only_at_the_commit(place: Place):
    await place.run("DROP TABLE IF EXISTS children")
    await place.make("parents", "CREATE TABLE parents (id integer PRIMARY KEY)")
    await place.run(f"CREATE TABLE children (id integer PRIMARY KEY, {REFERENCES[place.kind]})")
    await place.send(Mode.CREATE, [{"id": 1}], table="parents")
    records = [{"id": n, "parent": 7 if n in (3, 4) else 1} for n in range(6)]
    error = await place.refused(Mode.CREATE, records, table="children")
    assert error.kind is ErrorKind.DATA
    assert error.suspects in ((), (3, 4))
    answer = await place.send(Mode.CREATE, records, table="children", each=True)
    assert [v.outcome for v in answer.verdicts] == [
        Outcome.FAILED if n in (3, 4) else Outcome.CREATED for n in range(6)
    ]
    assert await place.rows("SELECT id FROM children ORDER BY id") == [(0,), (1,), (2,), (5,)]
    await place.run("DROP TABLE children")


UNSENDABLE = [
    ("price", {"a": 1}),
    ("day", 5),
    ("note", 5),
    ("doc", {1, 2}),
    ("id", 2**70),
]


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPSERT])
@pytest.mark.parametrize("column, value", UNSENDABLE)
async def test_postgresql_takes_only_values_of_the_columns_type(place: Place, mode: Mode, column: str, value: object):
    await place.products()
    await place.run("ALTER TABLE products ADD COLUMN day date, ADD COLUMN doc jsonb")
    records = [product(1, day=None, doc=None), product(2, day=None, doc=None) | {column: value}]
    error = await place.refused(mode, records)
    assert (error.kind, error.code) == (ErrorKind.DATA, "BAD_TYPE")
    assert outcomes(await place.send(mode, records, each=True)) == ["created", "BAD_TYPE"]


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("column, wrong", [("single", 1e300), ("amount", Decimal(1000))])
async def test_a_decimal_that_is_no_number_does_not_hide_which_record_is_wrong(
    place: Place, column: str, wrong: object
):
    await place.make("sums", "CREATE TABLE sums (id integer PRIMARY KEY, single real, amount numeric(5,2))")
    records = [{"id": n, "single": 1.5, "amount": Decimal(1)} for n in range(40)]
    records[3][column] = Decimal("NaN")
    records[7][column] = wrong
    result = await BulkExecutor(place.target).create_multiple("sums", records)
    assert [(error.index, error.field) for error in result.errors] == [(7, column)]
    assert (result.success_count, result.statistics.calls) == (39, 3)


@pytest.mark.databases("mariadb", "sqlite")
@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": object()}])
async def test_a_value_that_cannot_be_stored_fails_its_record_alone(place: Place, value: object):
    await place.products()
    answer = await place.send(Mode.CREATE, [product(1), product(2, note=value)])
    assert outcomes(answer) == ["created", "BAD_TYPE"]
    assert answer.verdicts[1].error is not None
    assert answer.verdicts[1].error.field == "note"


async def test_a_text_that_is_no_unicode_fails_its_record_when_sent_each(place: Place):
    await place.products()
    records = [product(1), product(2, note="\ud800"), product(3)]
    assert (await place.refused(Mode.CREATE, records)).kind is ErrorKind.DATA
    answer = await place.send(Mode.CREATE, records, each=True)
    assert [verdict.outcome for verdict in answer.verdicts] == [Outcome.CREATED, Outcome.FAILED, Outcome.CREATED]


@pytest.mark.databases("mariadb")
async def test_a_text_never_finds_the_row_of_number_zero(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(0)])
    answer = await place.send(Mode.UPDATE, [{"id": "zero", "name": "wrong"}, {"id": 0, "name": "right"}])
    assert outcomes(answer) == ["BAD_TYPE", "updated"]
    assert outcomes(await place.send(Mode.DELETE, ["nothing"])) == ["BAD_TYPE"]
    assert await place.rows("SELECT name FROM products") == [("right",)]
