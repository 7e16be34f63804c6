"""The connection is made to the address that was judged; TLS and the header Host go by the name."""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_network
from pathlib import Path

import pytest
from receivers import Answer, Receiver

from penstock.outbox.transport import Poster

LOOPBACK = (ip_network("127.0.0.0/8"),)


class Names:
    """A resolver whose answers change: the first is harmless, later ones lead elsewhere."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked += 1
        return [self.answers[min(self.asked, len(self.answers)) - 1]]


@pytest.mark.covers("X-04")
async def test_a_name_is_resolved_once_for_each_attempt_and_that_address_is_called(hook: Receiver):
    """With DNS rebinding a second look-up would lead to another host."""
    names = Names("127.0.0.1", "127.0.0.2")
    poster = Poster(allowed=LOOPBACK, timeout_s=60, resolve=names)
    status, _ = await poster.post(f"http://hooks.example:{hook.port}/hook", b"{}", {"X-A": "b"})
    assert (status, names.asked) == (200, 1)
    assert hook.requests[0].headers["host"] == f"hooks.example:{hook.port}"
    assert hook.requests[0].headers["x-a"] == "b"
    await poster.close()


async def test_proxies_of_the_environment_are_not_used(hook: Receiver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    poster = Poster(allowed=LOOPBACK, timeout_s=60)
    assert (await poster.post(hook.url, b"{}", {}))[0] == 200
    await poster.close()


async def test_tls_is_for_the_name_and_a_certificate_of_another_is_refused(tmp_path: Path):
    certificate, key = _certificate(tmp_path, "hooks.example")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    asked: list[str | None] = []
    context.sni_callback = lambda connection, name, _: asked.append(name)
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trusted = ssl.create_default_context(cafile=str(certificate))
    poster = Poster(allowed=LOOPBACK, timeout_s=60, resolve=Names("127.0.0.1"), tls=trusted)
    assert (await poster.post(f"https://hooks.example:{port}/", b"{}", {}))[0] == 200
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        await poster.post(f"https://other.example:{port}/", b"{}", {})
    assert asked == ["hooks.example", "other.example"]
    assert len(receiver.requests) == 1
    await poster.close()
    server.close()


async def test_who_does_not_answer_in_time_is_given_up(hook: Receiver):
    hook.answer = lambda request: Answer(hangs=True)
    poster = Poster(allowed=LOOPBACK, timeout_s=0.2)
    with pytest.raises(OSError):  # noqa: PT011  # a timeout, of the whole or of the read
        await poster.post(hook.url, b"{}", {})
    await poster.close()


async def test_who_cannot_be_reached_or_answers_nonsense_is_an_error_of_the_attempt():
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    poster = Poster(allowed=LOOPBACK, timeout_s=60)
    with pytest.raises(OSError, match=r"\w+Error"):
        await poster.post(f"http://127.0.0.1:{port}/", b"{}", {})
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match="ConnectError"):
        await poster.post(f"http://127.0.0.1:{port}/", b"{}", {})
    await poster.close()


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files[1].write_bytes(key.private_bytes(*private))
    return files
