"""What `Database.open` takes and refuses, and whose clock it uses."""

from __future__ import annotations

import socket
import sqlite3
import ssl
import time
from contextlib import closing
from importlib.util import find_spec

import pytest
import servers
from sqlalchemy import BigInteger, Column, MetaData, Table, insert, make_url, select
from sqlalchemy.exc import OperationalError

from penstock.clock import SystemClock
from penstock.db.address import parse
from penstock.db.database import Database
from penstock.db.dialects import DIALECTS
from penstock.db.refusals import Refusals
from penstock.db.safety import judge
from penstock.db.schema import table_options
from penstock.db.upgrade import check
from penstock.errors import DatabaseDamaged, DatabaseRefused, DatabaseUnsafe, SettingsInvalid, Unavailable

SPELLINGS = {
    "sqlite": ["sqlite:///x.db", "sqlite+aiosqlite:///x.db", "sqlite+pysqlite:///x.db"],
    "postgresql": ["postgresql://u:p@h/d", "postgres://u@h/d", "postgresql+asyncpg://h/d", "postgresql+psycopg://h/d"],
    "mariadb": ["mariadb://u:p@h/d", "mysql://h/d", "mariadb+asyncmy://h/d", "mysql+pymysql://h:3307/d"],
}


@pytest.mark.parametrize("kind, url", [(kind, url) for kind, urls in SPELLINGS.items() for url in urls])
def test_a_url_may_name_any_driver_and_gets_ours(kind, url):
    address, dialect = parse(url)
    assert dialect.name == kind
    assert address.drivername == dialect.driver


def test_sslmode_is_understood_as_libpq_means_it():
    assert parse("postgresql://h/d?sslmode=require")[0].query == {"ssl": "require"}


@pytest.mark.parametrize(
    "given, meant",
    [
        ("ssl=/ca.pem", {"ssl_ca": "/ca.pem"}),
        ("ssl=true", {"ssl_ca": "/system/ca.pem"}),
        ("ssl=true&ssl_ca=/ca.pem&ssl_cert=/me.pem", {"ssl_ca": "/ca.pem", "ssl_cert": "/me.pem"}),
        ("ssl=false&charset=utf8mb4", {"charset": "utf8mb4"}),
    ],
)
def test_ssl_of_mariadb_is_understood_as_bulk_calls_mean_it(monkeypatch, given, meant):
    known = ssl.get_default_verify_paths()._replace(cafile="/system/ca.pem")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: known)
    assert parse(f"mariadb://h/d?{given}")[0].query == meant


@pytest.mark.parametrize("url", ["sqlite:///{}/x.db?timeout=soon", "mariadb://u@127.0.0.1:1/d?read_timeout=soon"])
async def test_an_option_with_a_value_that_the_driver_does_not_take_is_refused(url, tmp_path):
    with pytest.raises(SettingsInvalid, match=r"has an option the driver does not take: .*'soon'"):
        await Database.open(url.format(tmp_path), clock=SystemClock())


@pytest.mark.parametrize(
    "url, reason",
    [
        ("oracle://h/d", "begins with 'oracle'; known forms are: sqlite:///file.db, postgresql://"),
        ("penstock.db", "cannot be read; known forms are"),
        ("", "cannot be read"),
        ("sqlite://", "in memory forgets everything"),
        ("sqlite:///:memory:", "in memory forgets everything"),
        ("sqlite:////nowhere/at/all/x.db", "folder of the database does not exist: /nowhere/at/all"),
        ("postgresql://u:secret@h", "names no database"),
    ],
)
async def test_a_wrong_url_is_refused_with_what_would_be_right(url, reason):
    with pytest.raises(SettingsInvalid, match=reason) as caught:
        await Database.open(url, clock=SystemClock())
    assert "secret" not in str(caught.value)


def test_a_database_that_may_only_be_read_says_which_rights_are_missing(tmp_path):
    (file := tmp_path / "x.db").touch()
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as reader, pytest.raises(sqlite3.Error) as refused:
        reader.execute("CREATE TABLE t (a)")
    told = Refusals(parse(f"sqlite:///{file}")[1], file).in_use(OperationalError("CREATE", None, refused.value))
    assert isinstance(told, Unavailable)
    assert "x.db cannot be written: " in str(told)
    assert "this user must be able to read and write it" in str(told)


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("penstock.db.address.find_spec", lambda name: None if name == "asyncpg" else find_spec(name))
    with pytest.raises(SettingsInvalid, match=r'asyncpg: pip install "penstock\[postgres\]"'):
        parse("postgresql://h/d")


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_wrong_password_or_database_is_a_wrong_setting(database_url):
    url = make_url(database_url)
    wrong = [url.set(database="nowhere")]
    # The throwaway PostgreSQL trusts every password, but not every name.
    wrong.append(url.set(username="nobody", password="wrong"))
    for each in wrong:
        with pytest.raises(DatabaseRefused, match="refused the connection"):
            await Database.open(each.render_as_string(hide_password=False), clock=SystemClock())


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_server_that_is_not_there_is_unavailable(database_kind):
    with pytest.raises(Unavailable, match="cannot be reached"):
        await Database.open(f"{database_kind}://u:p@127.0.0.1:1/d", clock=SystemClock())


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_server_that_takes_a_connection_and_says_nothing_is_unavailable(database_kind, monkeypatch):
    monkeypatch.setattr("penstock.db.database.HANDSHAKE_S", 0.2)
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"{database_kind}://u:p@127.0.0.1:{silent.getsockname()[1]}/x"
    with silent, pytest.raises(Unavailable, match="cannot be reached: it does not answer"):
        await Database.open(url, clock=SystemClock())


@pytest.mark.databases("sqlite")
async def test_a_file_that_is_no_database_is_refused(tmp_path, database_kind):
    (tmp_path / "notes.db").write_text("these are notes, not a database\n" * 100)
    with pytest.raises(DatabaseDamaged, match=r"notes\.db is no SQLite database"):
        await Database.open(f"sqlite:///{tmp_path / 'notes.db'}", clock=SystemClock())


@pytest.mark.covers("I-45")
@pytest.mark.databases("sqlite")
async def test_sqlite_is_set_to_lose_nothing(database):
    async with database.connection() as connection:
        found = [
            (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    assert found == ["wal", 2, 1, 1500]


@pytest.mark.databases("postgresql", "mariadb")
async def test_server_sessions_have_their_limits(database):
    settings = {
        "postgresql": {"lock_timeout": "1500ms", "idle_in_transaction_session_timeout": "30s"},
        "mariadb": {"innodb_lock_wait_timeout": 2, "idle_transaction_timeout": 30},
    }[database.dialect.name]
    show = "SHOW {}" if database.dialect.name == "postgresql" else "SELECT @@{}"
    async with database.connection() as connection:
        for name, value in settings.items():
            assert (await connection.exec_driver_sql(show.format(name))).scalar() == value


UNSAFE = {
    "postgresql": ["fsync", "synchronous_commit", "full_page_writes"],
    "mariadb": ["innodb_flush_log_at_trx_commit"],
}


@pytest.mark.covers("I-45")
@pytest.mark.databases("postgresql", "mariadb")
async def test_a_server_whose_settings_could_lose_commits_is_refused_by_name_and_value(database_kind):
    names = UNSAFE[database_kind]
    value = "off" if database_kind == "postgresql" else "2"
    given = [part for name in names for part in ("-c", f"{name}={value}")]
    options = given if database_kind == "postgresql" else [f"--{names[0]}={value}", "--log-bin", "--sync-binlog=0"]
    with servers.private(database_kind, *options) as server:
        with pytest.raises(DatabaseUnsafe) as caught:
            await Database.open(server.url, clock=SystemClock(), upgrade=True)
        report = await check(server.url, SystemClock())
    right = "on" if database_kind == "postgresql" else "1"
    for name in names:
        assert f"{name} is {value}; it must be {right}" in str(caught.value)
        assert f"{name} is {value}; it must be {right}" in report.problems
    assert any("schema is missing" in problem for problem in report.problems)


FACTS = {
    "sqlite": {"version": "3.37.0"},
    "postgresql": {
        "version": "13.4 (Debian)",
        "fsync": "on",
        "synchronous_commit": "local",
        "full_page_writes": "on",
        "server_encoding": "UTF8",
    },
    "mariadb": {
        "version": "10.6.1-MariaDB-log",
        "innodb_flush_log_at_trx_commit": 1,
        "innodb_doublewrite": 1,
        "sync_binlog": 1,
    },
}
OTHERS = [
    ("sqlite", {}, True),
    ("sqlite", {"version": "3.36.9"}, False),
    ("postgresql", {}, True),
    ("postgresql", {"version": "12.22"}, False),
    ("postgresql", {"version": "18beta1"}, True),
    ("postgresql", {"synchronous_commit": "remote_apply"}, True),
    ("postgresql", {"synchronous_commit": "off"}, False),
    ("postgresql", {"server_encoding": "SQL_ASCII"}, False),
    ("mariadb", {}, True),
    ("mariadb", {"version": "10.5.20-MariaDB"}, False),
    ("mariadb", {"version": "12.0.2-MariaDB"}, True),
    ("mariadb", {"version": "8.4.0"}, False),  # MySQL
    ("mariadb", {"innodb_flush_log_at_trx_commit": 0}, False),
    ("mariadb", {"innodb_doublewrite": "OFF"}, False),
    ("mariadb", {"sync_binlog": 0}, False),
]


@pytest.mark.covers("I-45")
@pytest.mark.parametrize("kind, change, is_ok", OTHERS)
def test_versions_and_settings_are_judged(kind, change, is_ok):
    (dialect,) = (each for each in DIALECTS if each.name == kind)
    findings = judge(dialect.requirements, {**FACTS[kind], **change})
    assert all(finding.is_ok for finding in findings) is is_ok


async def test_the_clock_is_the_time_now_in_microseconds(database):
    async with database.read() as tx:
        assert abs(await tx.scalar(select(database.now())) - time.time_ns() // 1000) < 2_000_000


@pytest.mark.databases("postgresql", "mariadb")
async def test_the_clock_is_utc_whatever_the_session_says(database):
    name = "TimeZone" if database.dialect.name == "postgresql" else "time_zone"
    async with database.connection() as connection:
        await connection.exec_driver_sql(f"SET {name} = '+09:00'")
        found = await connection.scalar(select(database.now()))
        await connection.invalidate()
    assert abs(found - time.time_ns() // 1000) < 2_000_000


@pytest.mark.covers("I-17")
async def test_a_servers_clock_moves_within_a_transaction(database):
    async with database.write() as tx:
        first = await tx.scalar(select(database.now()))
        while await tx.scalar(select(database.now())) == first:
            pass


async def test_a_manual_clock_is_the_only_clock(manual_database, clock):
    async with manual_database.read() as tx:
        assert await tx.scalar(select(manual_database.now())) == clock.now_us()
        clock.advance(3600)
        assert await tx.scalar(select(manual_database.now())) == clock.now_us()


async def test_more_transactions_than_connections_wait_their_turn(database_url, monkeypatch):
    monkeypatch.setattr("penstock.db.database.POOL_WAIT_S", 0.01)
    database = await Database.open(database_url, clock=SystemClock(), pool_size=1)
    async with database.read():
        with pytest.raises(Unavailable, match="no connection became free"):
            async with database.read():
                raise AssertionError("there was one connection only")
    await database.close()


@pytest.mark.covers("F07")
@pytest.mark.databases("postgresql", "mariadb")
async def test_the_kernel_is_told_to_notice_a_silent_partition(database):
    async with database.connection() as connection:
        raw = await connection.get_raw_connection()
        sock = raw.driver_connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_the_clock_can_be_compared_with_an_indexed_column_by_its_index(database):
    due = Table(
        "due",
        MetaData(),
        Column("at", BigInteger, primary_key=True, autoincrement=False),
        **table_options(is_numbered=False),
    )
    async with database.connection() as connection:
        await connection.run_sync(due.create)
        await connection.execute(insert(due), [{"at": 2**60 + n} for n in range(5000)])
        await connection.exec_driver_sql("ANALYZE TABLE due" if database.dialect.name == "mariadb" else "ANALYZE due")
        query = select(due.c.at).where(due.c.at <= database.now()).compile(connection.sync_engine)
        explain = "EXPLAIN QUERY PLAN" if database.dialect.is_file else "EXPLAIN"
        plan = (await connection.exec_driver_sql(f"{explain} {query}", tuple(query.params.values()))).all()
        await connection.run_sync(due.drop)
    told = " ".join(map(str, plan))
    assert "Index Cond" in told or "range" in told or "SEARCH due USING INTEGER PRIMARY KEY" in told
