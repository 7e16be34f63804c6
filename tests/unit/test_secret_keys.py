"""Keys: the first encrypts, all decrypt; beside a SQLite file one is made when it is first needed."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import SecretsUnreadable, SettingsInvalid
from penstock.secret_keys import SecretKeys, is_key, new_key
from penstock.settings import Settings, load_settings, masked

NONE = Path("no-such-file.toml")


def test_what_one_key_encrypts_it_decrypts_and_nobody_can_read_meanwhile():
    keys = SecretKeys(new_key())
    stored = keys.encrypt(b"hush")
    assert "hush" not in stored
    assert keys.decrypt(stored) == b"hush"


def test_of_several_keys_the_first_encrypts_and_all_decrypt():
    old, new = new_key(), new_key()
    stored = SecretKeys(old).encrypt(b"hush")
    both = SecretKeys(f"{new},\n {old}")
    assert both.decrypt(stored) == b"hush"
    assert SecretKeys(new).decrypt(both.encrypt(b"word")) == b"word"


def test_without_a_key_nothing_is_encrypted_and_the_error_says_how_to_make_one():
    with pytest.raises(SettingsInvalid, match=r"PENSTOCK_SECRET_KEY.*`penstock config --new-key` makes one"):
        SecretKeys(None).encrypt(b"hush")


def test_a_key_that_does_not_fit_is_told_from_one_that_is_missing(tmp_path: Path):
    stored = SecretKeys(new_key()).encrypt(b"hush")
    with pytest.raises(SecretsUnreadable, match="encrypted with another key than that of PENSTOCK_SECRET_KEY"):
        SecretKeys(new_key()).decrypt(stored)
    with pytest.raises(SecretsUnreadable, match=r"PENSTOCK_SECRET_KEY \(secret_key\) is not set"):
        SecretKeys(None).decrypt(stored)
    with pytest.raises(SecretsUnreadable, match=r"is not set, and there is no file .*a\.db\.key"):
        SecretKeys(None, tmp_path / "a.db.key").decrypt(stored)


def test_a_key_file_is_made_with_the_first_secret_and_only_its_owner_may_read_it(tmp_path: Path):
    file = tmp_path / "a.db.key"
    keys = SecretKeys(None, file)
    assert not file.exists()
    stored = keys.encrypt(b"hush")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert is_key(file.read_text().strip())
    assert SecretKeys(None, file).decrypt(stored) == b"hush"
    assert [path.name for path in tmp_path.iterdir()] == ["a.db.key"]


def test_a_setting_goes_before_the_file_which_still_decrypts(tmp_path: Path):
    file, key = tmp_path / "a.db.key", new_key()
    stored = SecretKeys(None, file).encrypt(b"hush")
    later = SecretKeys(key, file)
    assert later.decrypt(stored) == b"hush"
    assert SecretKeys(key).decrypt(later.encrypt(b"word")) == b"word"


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe"])
def test_a_key_file_that_holds_no_key_is_named(tmp_path: Path, content: bytes):
    file = tmp_path / "a.db.key"
    file.write_bytes(content)
    with pytest.raises(SecretsUnreadable, match=r"a\.db\.key"):
        SecretKeys(None, file).encrypt(b"hush")


def test_processes_that_make_the_key_file_at_once_agree_on_one_key(tmp_path: Path):
    file = tmp_path / "a.db.key"
    code = (
        "import sys; from pathlib import Path; from penstock.secret_keys import SecretKeys\n"
        "sys.stdin.read(); print(SecretKeys(None, Path(sys.argv[1])).encrypt(b'hush'))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    for process in started:
        assert process.stdout is not None
        stored = process.stdout.read().decode().strip()
        process.stdout.close()
        assert process.wait() == 0
        assert SecretKeys(None, file).decrypt(stored) == b"hush"


def test_a_setting_that_is_no_key_is_refused_and_not_repeated():
    with pytest.raises(SettingsInvalid, match="PENSTOCK_SECRET_KEY: takes keys as `penstock config --new-key`") as told:
        load_settings({"PENSTOCK_SECRET_KEY": "my-own-words"}, NONE)
    assert "my-own-words" not in str(told.value)


def test_the_key_is_never_shown():
    key = new_key()
    settings = load_settings({"PENSTOCK_SECRET_KEY": key}, NONE)
    assert key not in f"{settings!r} {settings} {masked(settings.secret_key)} {settings.secret_keys!r}"
    assert settings.secret_keys.decrypt(SecretKeys(key).encrypt(b"hush")) == b"hush"


@pytest.mark.parametrize(
    "url, file",
    [
        ("sqlite:///data/a.db", "data/a.db"),
        ("sqlite:////var/a.db", "/var/a.db"),
        ("sqlite+aiosqlite:///a.db?timeout=3", "a.db"),
        ("sqlite:///file:my%20a.db?uri=true", "my a.db"),
        ("postgresql://host/name", None),
    ],
)
def test_the_file_of_a_database_is_known_by_its_url(url: str, file: str | None):
    assert Settings(database_url=url).database_file == (None if file is None else Path(file))
