"""Where settings come from, which of them wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import SettingsInvalid
from penstock.settings import Settings, effective, layers, load_settings, masked, origins

NONE = Path("no-such-file.toml")


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


def test_without_any_word_the_defaults_hold():
    assert load_settings({}, NONE) == Settings()


def test_arguments_beat_the_environment_and_the_environment_beats_the_file(toml: Path):
    toml.write_text("chunk_rows = 1\nflush_rows = 1\nsync_threads = 1\n")
    environ = {"PENSTOCK_FLUSH_ROWS": "2", "PENSTOCK_SYNC_THREADS": "2"}
    found = load_settings(environ, toml, sync_threads=3)
    assert (found.chunk_rows, found.flush_rows, found.sync_threads) == (1, 2, 3)
    come_from = origins(layers(environ, toml, sync_threads=3))
    assert [come_from[name] for name in ("chunk_rows", "flush_rows", "sync_threads", "database_url")] == [
        "penstock.toml",
        "environment",
        "argument",
        "default",
    ]


def test_an_argument_that_is_none_is_not_given():
    assert load_settings({"PENSTOCK_APP": "shop"}, NONE, app=None).app == "shop"


def test_settings_do_not_change():
    with pytest.raises(ValueError, match="frozen"):
        Settings().chunk_rows = 5  # type: ignore[misc]


def test_options_of_operations_stand_in_the_file_or_as_json_in_the_environment(toml: Path):
    toml.write_text("[operations.invoices.steps.book]\nretries = 5\n")
    expected = {"invoices": {"steps": {"book": {"retries": 5}}}}
    assert load_settings({}, toml).operations == expected
    environ = {"PENSTOCK_OPERATIONS": '{"invoices": {"steps": {"book": {"retries": 5}}}}'}
    assert load_settings(environ, NONE).operations == expected


def test_every_fault_is_reported_at_once_under_the_name_the_user_wrote(toml: Path):
    toml.write_text("flush_s = -1\nchunk_row = 7\n")
    environ = {"PENSTOCK_CHUNK_ROWS": "many", "PENSTOCK_LEESE_S": "3"}
    with pytest.raises(SettingsInvalid) as refused:
        load_settings(environ, toml)
    assert {fault.field: fault.message for fault in refused.value.faults} == {
        "chunk_row": "is not a setting; did you mean chunk_rows?",
        "PENSTOCK_LEESE_S": "is not a setting; did you mean PENSTOCK_LEASE_S?",
        "flush_s": "Input should be greater than 0; found -1",
        "PENSTOCK_CHUNK_ROWS": "Input should be a valid integer, unable to parse string as an integer; found 'many'",
    }


@pytest.mark.parametrize(
    "name, value", [("PENSTOCK_LEASE_S", "5"), ("PENSTOCK_HEARTBEAT_S", "8"), ("PENSTOCK_LEASE_MARGIN_S", "7")]
)
def test_a_lease_that_leaves_no_time_to_start_anything_is_refused(name: str, value: str):
    environ = {name: value}
    with pytest.raises(SettingsInvalid, match="must be longer than heartbeat_s and lease_margin_s together") as refused:
        load_settings(environ, NONE)
    assert len(refused.value.faults) == 1
    settings, _ = effective(layers(environ, NONE))
    assert settings == Settings()


def test_a_lease_is_judged_beside_what_else_is_wrong():
    _, faults = effective(layers({"PENSTOCK_LEASE_S": "1", "PENSTOCK_FLUSH_S": "-1"}, NONE))
    assert [fault.field for fault in faults] == ["PENSTOCK_FLUSH_S", "PENSTOCK_LEASE_S"]


def test_a_short_lease_needs_a_short_heartbeat_and_margin():
    environ = {"PENSTOCK_LEASE_S": "1", "PENSTOCK_HEARTBEAT_S": "0.3", "PENSTOCK_LEASE_MARGIN_S": "0.2"}
    assert load_settings(environ, NONE).lease_s == 1


@pytest.mark.parametrize("url", ["bulk.example.org", "ftp://bulk.example.org", "https://"])
def test_an_address_without_its_scheme_and_host_is_refused(url: str):
    with pytest.raises(SettingsInvalid, match=r"PENSTOCK_PUBLIC_URL: begins with http:// or https://"):
        load_settings({"PENSTOCK_PUBLIC_URL": url}, NONE)


def test_a_value_that_was_found_is_told_once():
    with pytest.raises(SettingsInvalid) as refused:
        load_settings({"PENSTOCK_KEEP": "90x"}, NONE)
    assert str(refused.value).count("found '90x'") == 1


@pytest.mark.parametrize("text", ["chunk_rows = ", "\xff"])
def test_a_file_that_cannot_be_read_is_named(toml: Path, text: str):
    toml.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsInvalid, match=r"penstock\.toml cannot be read"):
        load_settings({}, toml)


def test_a_variable_that_must_be_json_says_so():
    with pytest.raises(SettingsInvalid, match="PENSTOCK_OPERATIONS must be a JSON object"):
        load_settings({"PENSTOCK_OPERATIONS": "{"}, NONE)


def test_variables_of_the_test_suite_are_no_settings():
    assert load_settings({"PENSTOCK_TEST_POSTGRESQL": "x", "PATH": "y"}, NONE) == Settings()


@pytest.mark.parametrize(
    "url, shown",
    [
        ("sqlite:///penstock.db", "sqlite:///penstock.db"),
        ("postgresql://ann@host/name", "postgresql://ann@host/name"),
        ("postgresql://ann:s3cret@host/name", "postgresql://ann:***@host/name"),
        ("postgresql://ann:p%40ss:w@rd@host/name", "postgresql://ann:***@host/name"),
        ("s3://bucket/x?secret_access_key=abc&region=eu", "s3://bucket/x?secret_access_key=***&region=eu"),
        ("mariadb://u@h/d?password=x&charset=utf8", "mariadb://u@h/d?password=***&charset=utf8"),
        (1000, 1000),
        (None, None),
    ],
)
def test_secrets_in_urls_are_masked(url: object, shown: object):
    assert masked(url) == shown


@pytest.mark.parametrize(
    "given, folder",
    [
        ({"database_url": "sqlite:///data/penstock.db"}, "data/penstock.db.blobs"),
        ({"database_url": "sqlite:///my%20data/penstock.db"}, "my data/penstock.db.blobs"),
        ({"database_url": "sqlite:///my data/penstock.db"}, "my data/penstock.db.blobs"),
        ({"database_url": "postgresql://host/name", "storage_url": "/srv/files"}, "/srv/files"),
        ({"storage_url": "file:./files"}, "files"),
        ({"storage_url": "file:///var/files"}, "/var/files"),
        ({"storage_url": "files"}, "files"),
    ],
)
def test_files_live_beside_a_sqlite_database_unless_told(given: dict[str, str], folder: str):
    assert Settings(**given).storage_folder == Path(folder)


@pytest.mark.parametrize("url", ["postgresql://host/name", "mariadb://host/name"])
@pytest.mark.parametrize(
    "given, found",
    [({}, "is not set"), ({"storage_url": "file:./files"}, "is 'file:./files'"), ({"storage_url": "f"}, "is 'f'")],
)
def test_the_processes_of_a_server_database_need_a_folder_that_they_share(url: str, given: dict[str, str], found: str):
    settings = Settings(database_url=url, **given)
    assert settings.storage_folder is None
    assert str(settings.storage_fault).startswith(f"storage_url (PENSTOCK_STORAGE_URL) {found}")
    assert "file:///srv/penstock/files" in str(settings.storage_fault)


def test_every_setting_has_a_meaning():
    assert all(field.description for field in Settings.model_fields.values())
