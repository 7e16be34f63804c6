"""The test remote can be started by hand and used from another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from dataverse import EndpointCredential
from patience import HANG_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url() -> Iterator[str]:
    rate = ("--rate", "0.001", "--window-s", "3600")
    command = [sys.executable, "-m", "tests.dataverse", "--port", "0", *rate, "--users", "app-1", "app-2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        process.stdout.read()
        assert process.wait(HANG_S) == 0


def test_it_prints_its_address_gives_tokens_and_keeps_to_its_rate(url: str):
    token = EndpointCredential(url, "app-2").get_token(f"{url}/.default").token
    with httpx.Client(base_url=f"{url}/api/data/v9.2/", headers={"Authorization": f"Bearer {token}"}) as client:
        assert client.post("accounts", json={"name": "a"}).status_code == 204
        statuses = [client.get("accounts").status_code for _ in range(20)]
    assert set(statuses) == {200, 429}


def test_it_gives_no_token_to_a_stranger(url: str):
    with pytest.raises(OSError, match="400"):
        EndpointCredential(url, "nobody").get_token(f"{url}/.default")
