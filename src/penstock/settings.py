"""Settings: one frozen tree, read once at the edge from `PENSTOCK_…` variables or `penstock.toml`, and passed down.

Arguments beat the environment, the environment beats the file, the file beats the defaults. Unknown names are refused.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from penstock.errors import Fault, SettingsInvalid
from penstock.retention import parse_keep
from penstock.secret_keys import SecretKeys, is_key

__all__ = ["FILE", "LISTED", "Layer", "Settings", "effective", "layers", "load_settings", "masked", "origins"]

MIB = 1024 * 1024
LEASE = ("lease_s", "heartbeat_s", "lease_margin_s")  # what is judged together, beside single settings
PREFIX = "PENSTOCK_"
STORES = ("s3", "gs", "az", "abfs", "abfss", "memory")  # what storage_url may begin with, beside file
FILE = Path("penstock.toml")
# Signed with a private key that we have not: with a shared secret, whoever checks tokens could make them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LISTED = "; `penstock config` lists them all"
SMTP_SCHEMES = ("smtp", "smtps", "smtp+starttls")
Role = Literal["read", "operate", "admin"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
SECRET = ("secret_key", "smtp_url")  # what was found is not repeated
# Variables of the test suite and of the command's own shell completion are no settings.
TABLES = ("operations", "oidc_roles")  # JSON objects in the environment
FOREIGN = (f"{PREFIX}TEST_", f"_{PREFIX}")


class Settings(BaseModel):
    """Every setting, with its unit in its name. Options of operations stand under `operations`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: str = Field(default="sqlite:///penstock.db", description="where operations live")
    database_schema: str | None = Field(
        default=None, min_length=1, description="the schema of a PostgreSQL database, such as one for each tenant"
    )
    storage_url: str | None = Field(
        default=None, description="where files live; beside a SQLite database unless set; a server needs it"
    )
    secret_key: SecretStr | None = Field(
        default=None, description="encrypts secrets in metadata; a file beside a SQLite database unless set"
    )
    app: str | None = Field(default=None, description="the module that holds the operations")
    public_url: str | None = Field(default=None, description="how the outside reaches this service, for callbacks")
    url: str | None = Field(default=None, description="the server that commands ask, instead of a database")
    api_key: SecretStr | None = Field(default=None, description="the key or token with which commands ask a server")
    chunk_rows: int = Field(
        default=1000, ge=1, le=10_000, description="rows to a chunk; to four times as many in a large file"
    )
    flush_rows: int = Field(default=4000, ge=1, le=10_000, description="rows that start under one intent")
    flush_s: float = Field(default=1.0, gt=0, description="how long an outcome may stay unwritten")
    heartbeat_s: float = Field(default=3.0, gt=0, description="how often a worker renews its lease")
    lease_s: float = Field(
        default=10.0,
        gt=0,
        description="how long a silent worker keeps its chunks; more than the margin and a heartbeat",
    )
    lease_margin_s: float = Field(default=2.0, ge=0, description="no user code starts this close to the end of a lease")
    control_poll_s: float = Field(default=1.0, gt=0, description="how often a worker looks for cancel and pause")
    wake_poll_s: float = Field(default=0.5, gt=0, description="how often an idle worker looks for work")
    shutdown_s: float = Field(default=25.0, ge=0, description="how long a stopping worker waits for running steps")
    stall_s: float = Field(
        default=30.0, gt=0, description="how long a step may block the event loop before its worker gives up its lease"
    )
    stall_warning_s: float = Field(
        default=1.0, gt=0, description="how long a step may block the event loop before it is named in the log"
    )
    poison_rows_max: int = Field(
        default=10, ge=0, description="rows that may kill their worker before the operation stops"
    )
    cancel_grace_s: float = Field(default=5.0, ge=0, description="how long a running step may go on after a cancel")
    sync_threads: int = Field(default=16, ge=1, description="threads for steps and validators declared with plain def")
    row_bytes_max: int = Field(default=MIB, ge=1, description="the largest row a reader accepts")
    output_bytes_max: int = Field(default=64 * 1024, ge=1, description="the largest output a step may return")
    upload_bytes_max: int = Field(default=1024 * MIB, ge=0, description="the largest file an upload may have; any if 0")
    metadata_bytes_max: int = Field(default=MIB, ge=1, description="the largest metadata an operation may have")
    keep: dict[str, float | None] = Field(
        default_factory=dict,
        description="how long what is kept of operations that have ended, such as 90d; for ever unless set",
    )
    webhook_networks: str = Field(
        default="", description="private networks that webhooks may be sent to, such as 10.1.0.0/16; none unless set"
    )
    webhook_timeout_s: float = Field(default=20.0, gt=0, description="how long a webhook's receiver may take to answer")
    handler_timeout_s: float = Field(
        default=30.0, gt=0, description="how long a handler, a guard, an effect, or the server for e-mail may take"
    )
    smtp_url: SecretStr | None = Field(
        default=None, description="the server that e-mails are sent by: smtp+starttls://user:password@host:587"
    )
    smtp_from: str = Field(default="penstock@localhost", description="the sender of e-mails")
    delivery_days: float = Field(
        default=30, ge=0, description="how long workers keep deliveries that are settled; for ever if 0"
    )
    page_max: int = Field(default=1000, ge=1, description="the longest page a query returns")
    log_level: LogLevel = Field(default="info", description="how much is logged")
    tenant_bytes_per_day: int = Field(
        default=0, ge=0, description="how many bytes of files a tenant may submit over HTTP within a day; 0: any"
    )
    tenant_open_operations_max: int = Field(
        default=0,
        ge=0,
        description="how many operations a tenant may have under way to submit one more; 0: any",
    )
    rate_per_s: float = Field(
        default=1000, ge=0, description="requests a second that one caller may send to one server; 0: any"
    )
    rate_burst: int = Field(default=2000, ge=1, description="requests that one caller may send at once")
    session_s: float = Field(default=8 * 3600.0, gt=0, description="how long a login to the dashboard lasts")
    oidc_issuer: str | None = Field(default=None, description="whose tokens the API accepts: their `iss`")
    oidc_audience: str | None = Field(default=None, description="for whom accepted tokens are made: their `aud`")
    oidc_jwks_url: str | None = Field(default=None, description="where the public keys of the issuer are")
    oidc_keys: str | None = Field(default=None, description="the issuer's public keys themselves: PEM, or a JWKS")
    oidc_algorithms: str = Field(default="RS256 ES256", description="how accepted tokens may be signed")
    oidc_leeway_s: float = Field(default=30.0, ge=0, le=300, description="how far the issuer's clock may be off")
    oidc_name_claim: str = Field(default="sub", description="the claim that names who asks")
    oidc_roles_claim: str = Field(default="roles", description="the claim that holds roles; dots lead into objects")
    oidc_roles: dict[str, Role] = Field(
        default_factory=dict, description="the role for each value of that claim; without any, its values are roles"
    )
    oidc_tenant_claim: str | None = Field(
        default=None, description="the claim that names the tenant; tokens without it are refused then"
    )
    oidc_operations_claim: str | None = Field(
        default=None, description="the claim that lists the operations that may be used; tokens without it may use none"
    )
    trace_ratio: float = Field(
        default=0.01, ge=0, le=1, description="which part of all rows is traced, where OpenTelemetry is set up"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="log lines for people, or a JSON object each"
    )
    operations: dict[str, dict[str, Any]] = Field(default_factory=dict, description="options by operation and step")

    @model_validator(mode="after")
    def _has_time_to_start(self) -> Self:
        needed = self.heartbeat_s + self.lease_margin_s
        if self.lease_s <= needed:
            raise ValueError(
                f"a lease must be longer than heartbeat_s and lease_margin_s together ({needed:g}), or workers could "
                f"hardly start anything; found {self.lease_s:g}"
            )
        return self

    @field_validator("public_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        parts = urlsplit("http://-" if url is None else url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("begins with http:// or https:// and a host, such as https://bulk.example.org")
        return url

    @field_validator("storage_url")
    @classmethod
    def _is_a_place(cls, url: str | None) -> str | None:
        scheme, separator, _ = (url or "").partition("://")
        if separator and scheme not in ("file", *STORES):
            known = ", ".join(f"{each}://" for each in STORES)
            raise ValueError(f"files can be stored in a folder (file:…) or in {known}; {scheme}:// is not known")
        return url

    @field_validator("webhook_networks")
    @classmethod
    def _are_networks(cls, given: str) -> str:
        try:
            _networks(given)
        except ValueError as error:
            raise ValueError(f"takes networks such as 10.1.0.0/16, separated by commas; {error}") from None
        return given

    @field_validator("smtp_url")
    @classmethod
    def _is_a_mail_server(cls, given: SecretStr | None) -> SecretStr | None:
        parts = urlsplit("" if given is None else given.get_secret_value())
        if given is not None and (parts.scheme not in SMTP_SCHEMES or not parts.hostname):
            raise ValueError("takes smtp+starttls://user:password@host:587, smtps://host or smtp://host")
        return given

    @property
    def webhook_networks_allowed(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The setting `webhook_networks`, parsed."""
        return _networks(self.webhook_networks)

    @field_validator("keep", mode="before")
    @classmethod
    def _is_a_policy(cls, given: Any) -> Any:
        return parse_keep(given)

    @field_validator("secret_key")
    @classmethod
    def _are_keys(cls, given: SecretStr | None) -> SecretStr | None:
        keys = [] if given is None else given.get_secret_value().replace(",", " ").split()
        if given is not None and not (keys and all(map(is_key, keys))):
            raise ValueError("takes keys as `penstock config --new-key` makes them, separated by commas or spaces")
        return given

    @field_validator("oidc_jwks_url")
    @classmethod
    def _is_trusted(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "https://-")
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")):
            raise ValueError("keys are fetched by https:// only, or from this machine")
        return url

    @field_validator("oidc_algorithms")
    @classmethod
    def _are_asymmetric(cls, given: str) -> str:
        names = given.replace(",", " ").split()
        wrong = [name for name in names if name not in ALGORITHMS]
        if wrong or not names:
            raise ValueError(f"takes one or more of {', '.join(ALGORITHMS)}; found {' '.join(wrong) or 'none'}")
        return " ".join(names)

    @property
    def secret_keys(self) -> SecretKeys:
        """What encrypts and decrypts secrets; on SQLite a file beside the database may hold the key."""
        given = None if self.secret_key is None else self.secret_key.get_secret_value()
        file = self.database_file
        return SecretKeys(given, None if file is None else file.with_name(f"{file.name}.key"))

    @property
    def database_address(self) -> str:
        """The URL of the database, with the schema in it if there is one."""
        if self.database_schema is None:
            return self.database_url
        return f"{self.database_url}{'&' if '?' in self.database_url else '?'}schema={quote(self.database_schema)}"

    @property
    def database_file(self) -> Path | None:
        """The file of a SQLite database."""
        if not self.database_url.startswith("sqlite"):
            return None
        path = unquote(self.database_url.partition(":///")[2].partition("?")[0])  # as the driver reads it
        return Path(unquote(path.removeprefix("file:")) if path.startswith("file:") else path)

    @property
    def is_storage_remote(self) -> bool:
        """Whether files are stored by `obstore`, not in a folder."""
        return (self.storage_url or "").partition("://")[0] in STORES

    @property
    def storage_folder(self) -> Path | None:
        """The folder that holds files, beside a SQLite database unless named.

        None where files lie in an object store, or `storage_fault` says why there is none.
        """
        if self.storage_fault is not None or self.is_storage_remote:
            return None
        if self.storage_url is not None:
            return _folder(self.storage_url)
        assert self.database_file is not None
        return self.database_file.with_name(f"{self.database_file.name}.blobs")

    @property
    def storage_fault(self) -> str | None:
        """Why no file can be stored: the processes of a server database would each look in a folder of their own."""
        if self.database_file is not None or self.is_storage_remote:
            return None
        if self.storage_url and _folder(self.storage_url).is_absolute():
            return None
        found = (
            f"is {self.storage_url!r}, below each process's own working folder" if self.storage_url else "is not set"
        )
        return (
            f"storage_url (PENSTOCK_STORAGE_URL) {found}; with a server database it must be an absolute folder that "
            "all processes share, such as file:///srv/penstock/files, or an object store such as s3://bucket/prefix"
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one place; `written` is how that place spells a setting's name."""

    origin: str
    values: Mapping[str, Any]

    def written(self, name: str) -> str:
        """The setting's name as the user wrote it there."""
        return f"{PREFIX}{name.upper()}" if self.origin == "environment" else name


def _networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(each, strict=False) for each in text.replace(",", " ").split())


def _folder(url: str) -> Path:
    return Path(url.removeprefix("file:").removeprefix("//"))


def load_settings(environ: Mapping[str, str] | None = None, file: Path = FILE, **arguments: Any) -> Settings:
    """The effective settings; `arguments` that are None count as not given. Every fault is reported at once."""
    settings, faults = effective(layers(environ, file, **arguments))
    if faults:
        raise SettingsInvalid("settings: " + "; ".join(map(str, faults)), faults)
    return settings


def effective(found: tuple[Layer, ...]) -> tuple[Settings, list[Fault]]:
    """The settings, and everything that is wrong with them; where a value is wrong, the default stands for it."""
    faults = [fault for layer in found for fault in _unknown(layer)]
    merged = {name: value for layer in found for name, value in layer.values.items() if name in Settings.model_fields}
    by_origin = {name: layer.written(name) for layer in found for name in layer.values}
    while True:
        try:
            return Settings.model_validate(merged), faults
        except ValidationError as error:  # what is judged together is looked at once the single ones are right
            wrong = error.errors(include_url=False)
            faults += [_fault(each, by_origin) for each in wrong]
            refused = {str(name) for each in wrong for name in each["loc"][:1] or LEASE}
            merged = {name: value for name, value in merged.items() if name not in refused}


def layers(environ: Mapping[str, str] | None = None, file: Path = FILE, **arguments: Any) -> tuple[Layer, ...]:
    """What each place says, weakest first."""
    return (
        Layer(file.name, _file_values(file)),
        Layer("environment", dict(_environment_values(os.environ if environ is None else environ))),
        Layer("argument", {name: value for name, value in arguments.items() if value is not None}),
    )


def origins(found: tuple[Layer, ...]) -> dict[str, str]:
    """Where each setting's effective value comes from."""
    named = {name: layer.origin for layer in found for name in layer.values}
    return {name: named.get(name, "default") for name in Settings.model_fields}


def masked(value: Any) -> Any:
    """A setting's value with the secrets of its URL blotted out: passwords, keys and tokens."""
    if isinstance(value, SecretStr):
        return "***"
    if not isinstance(value, str):
        return value
    value = re.sub(r"(?<=://)([^/?#@:]*):[^/?#]*@", r"\1:***@", value)
    return re.sub(r"(?i)([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&]*", r"\1***", value)


def _file_values(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(f"{file} cannot be read: {error}") from error


def _environment_values(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, value in environ.items():
        if name.startswith(PREFIX) and not name.startswith(FOREIGN):
            setting = name.removeprefix(PREFIX).lower()
            yield setting, _table(name, value) if setting in TABLES else value


def _table(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise SettingsInvalid(f"{name} must be a JSON object; {error}", [Fault(str(error), name)]) from error


def _unknown(layer: Layer) -> Iterator[Fault]:
    known = tuple(Settings.model_fields)
    for name in sorted(layer.values.keys() - set(known)):
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {layer.written(near[0])}?" if near else LISTED
        yield Fault(f"is not a setting{hint}", layer.written(name))


def _fault(wrong: Any, by_origin: Mapping[str, str]) -> Fault:
    name, *path = map(str, wrong["loc"] or LEASE[:1])
    message = wrong["msg"].removeprefix("Value error, ")
    is_told = name in SECRET or "; found " in message
    found = "" if is_told else f"; found {masked(wrong['input'])!r}"
    return Fault(message + found, ".".join([by_origin.get(name, name), *path]))
