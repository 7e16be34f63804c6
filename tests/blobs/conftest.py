"""Storages for tests of blobs: a folder, the memory, and a server that speaks S3 (moto's), started when needed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from blob_services import Opening, blobs_on

from penstock.blobs.objects import ObjectStorage
from penstock.blobs.service import Blobs
from penstock.blobs.storage import Storage
from penstock.blobs.store import FileStore
from penstock.clock import ManualClock
from penstock.db.database import Database

BUCKET = "penstock-tests"
_names = count(1)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server of our own."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    yield url
    server.stop()


@pytest.fixture
def s3_url(s3_server: str) -> str:
    """A storage_url of its own for each test."""
    options = f"endpoint={s3_server}&region=us-east-1&access_key_id=x&secret_access_key=x"
    return f"s3://{BUCKET}/test-{next(_names)}?{options}"


STORAGES = ("folder", "memory", "s3")


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Each kind of storage in turn."""
    match request.param:
        case "folder":
            return FileStore(tmp_path / "files")
        case "memory":
            return ObjectStorage("memory://")
        case _:
            return ObjectStorage(request.getfixturevalue("s3_url"))


@pytest.fixture
def folder(tmp_path: Path) -> FileStore:
    """A folder."""
    return FileStore(tmp_path / "files")


@pytest.fixture
def on_sqlite(worker_database: Callable[[str], str], tmp_path: Path, clock: ManualClock) -> Opening:
    """Opens a service of blobs on a SQLite database of its own, with the storage that is given."""
    import shutil

    from sqlalchemy import make_url

    template = make_url(worker_database("sqlite")).database

    @asynccontextmanager
    async def opened(storage: Storage, **policy: Any) -> AsyncIterator[Blobs]:
        shutil.copy(str(template), tmp_path / "penstock.db")
        db = await Database.open(f"sqlite:///{tmp_path / 'penstock.db'}", clock=clock)
        try:
            yield blobs_on(db, storage, clock, **policy)
        finally:
            await db.close()

    return opened
