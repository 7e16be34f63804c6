"""Settings: one frozen tree, read once at the edge from `PENSTOCK_…` variables or `penstock.toml`, and passed down.

The environment beats the file, the file beats the defaults; arguments beat all of them. Unknown names are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from penstock.errors import Fault, SettingsInvalid

__all__ = ["Settings", "load_settings"]

MIB = 1024 * 1024
PREFIX = "PENSTOCK_"


class Settings(BaseSettings):
    """Every setting, with its unit in its name. Options of operations stand under `operations`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", toml_file="penstock.toml")

    database_url: str = Field("sqlite:///penstock.db", description="where operations live")
    storage_url: str | None = Field(None, description="where files live; beside a SQLite database unless set")
    app: str | None = Field(None, description="the module that holds the operations")
    public_url: str | None = Field(None, description="how the outside reaches this service, for callbacks")
    chunk_rows: int = Field(1000, ge=1, le=10_000, description="rows to a chunk, the unit of ownership")
    flush_rows: int = Field(1000, ge=1, le=10_000, description="rows that start under one intent")
    flush_s: float = Field(1.0, gt=0, description="how long an outcome may stay unwritten")
    heartbeat_s: float = Field(3.0, gt=0, description="how often a worker renews its lease")
    lease_s: float = Field(10.0, gt=0, description="how long a silent worker keeps its chunks")
    lease_margin_s: float = Field(2.0, ge=0, description="no user code starts this close to the end of a lease")
    control_poll_s: float = Field(1.0, gt=0, description="how often a worker looks for cancel and pause")
    wake_poll_s: float = Field(0.5, gt=0, description="how often an idle worker looks for work")
    shutdown_s: float = Field(25.0, ge=0, description="how long a stopping worker waits for running steps")
    sync_threads: int = Field(16, ge=1, description="threads for steps declared with plain def")
    row_bytes_max: int = Field(MIB, ge=1, description="the largest row a reader accepts")
    output_bytes_max: int = Field(64 * 1024, ge=1, description="the largest output a step may return")
    metadata_bytes_max: int = Field(MIB, ge=1, description="the largest metadata an operation may have")
    page_max: int = Field(1000, ge=1, description="the longest page a query returns")
    log_level: str = Field("info", description="how much is logged")
    operations: dict[str, dict[str, Any]] = Field(default_factory=dict, description="options by operation and step")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def storage_folder(self) -> Path:
        """The folder that holds files when no storage is named: beside a SQLite database, else here."""
        if self.storage_url is not None:
            return Path(self.storage_url.removeprefix("file:").removeprefix("//"))
        if self.database_url.startswith("sqlite"):
            return Path(self.database_url.partition(":///")[2].partition("?")[0] + ".blobs")
        return Path("penstock-blobs")


def load_settings(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """The effective settings; `arguments` that are None count as not given. Every fault is reported at once."""
    names = os.environ if environ is None else environ
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    faults = [
        Fault(f"is not a setting; `penstock config` lists them all", name)
        for name in sorted(names)
        if name.startswith(PREFIX) and not name.startswith(f"{PREFIX}TEST_") and name.upper() not in known
    ]
    settings = None
    try:
        settings = Settings(**{name: value for name, value in arguments.items() if value is not None})
    except ValidationError as error:
        faults += [Fault(e["msg"], ".".join(map(str, e["loc"]))) for e in error.errors(include_url=False)]
    if faults or settings is None:
        raise SettingsInvalid("settings: " + "; ".join(map(str, faults)), faults)
    return settings
