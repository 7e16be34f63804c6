"""Which addresses we send to: none inside our own network, however they are spelled.

Whoever may name an address that we call could otherwise reach what only we can reach: services on this host, metadata
servers, databases. Everything here is pure; `transport` resolves names and connects to the very address it has judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from penstock.errors import InvalidInput

__all__ = ["Endpoint", "Network", "literal_address", "parse_endpoint", "refusal"]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PORTS = {"http": 80, "https": 443}
URL_CHARS_MAX = 2000
# Ports above the well-known ones that speak no HTTP, or an HTTP that is nobody else's business.
SERVICE_PORTS = frozenset(
    {1433, 1521, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5432, 5672, 5900, 5984, 5985, 5986, 6000}
    | {6379, 6443, 8500, 9042, 9092, 9200, 9300, 10250, 10255, 11211, 15672, 27017}
)
NAMES_INSIDE = ("localhost", ".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".localdomain")

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<place>[^/?#]*)(?P<rest>[/?][^#]*)?", re.ASCII)
_NAME = re.compile(r"(?=.{1,253}\Z)(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII)
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)

# Beyond what `ipaddress` knows as not global: networks that carry an IPv4 address inside, judged by that address.
_MAPPED = (
    (ip_network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ip_network("::ffff:0:0:0/96"), 0),  # IPv4-translated
    (ip_network("64:ff9b::/96"), 0),  # NAT64
    (ip_network("::/96"), 0),  # IPv4-compatible
    (ip_network("2002::/16"), 80),  # 6to4: behind the first 16 bits
)
_REFUSED = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15",
            "224.0.0.0/4", "240.0.0.0/4", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20",
            "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
        ),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that may be called, as far as its spelling tells."""

    scheme: str
    host: str  # in lower case, without brackets and the dot at its end
    port: int
    path: str  # with its query

    @property
    def host_header(self) -> str:
        """The host as HTTP names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def parse_endpoint(url: str, allowed: Sequence[Network] = ()) -> Endpoint:
    """Where a URL leads; `InvalidInput` when we would never call it. Names are judged again by their addresses."""
    found = _URL.fullmatch(url) if len(url) <= URL_CHARS_MAX and url.isascii() and url.isprintable() else None
    if found is None or " " in url or "\\" in url:
        raise InvalidInput(
            f"{_cut(url)!r} is no address to send to; write https://host/path, "
            f"in ASCII without spaces and fragment, at most {URL_CHARS_MAX} characters"
        )
    scheme = found["scheme"].lower()
    if scheme not in PORTS:
        raise InvalidInput(f"{_cut(url)!r} begins with {scheme}:; only http: and https: are sent to")
    if "@" in found["place"]:
        raise InvalidInput("an address to send to holds no user name or password; sign messages with the secret")
    host, port = _host_and_port(found["place"], scheme)
    literal = literal_address(host)
    if literal is None and (not _NAME.fullmatch(host) or _ends_in_number(host)):
        raise InvalidInput(f"{_cut(host)!r} is no host name")
    if literal is not None:
        why = refusal(literal, port, allowed)
    elif allowed:
        why = None  # its addresses tell
    elif _is_name_inside(host):
        why = f"{host!r} is a name of this host or network, where nothing is sent to"
    else:
        why = _port_refusal(port)
    if why is not None:
        raise InvalidInput(why)
    rest = found["rest"] or "/"
    return Endpoint(scheme, host, port, rest if rest.startswith("/") else f"/{rest}")


def refusal(address: str | Address, port: int, allowed: Sequence[Network] = ()) -> str | None:
    """Why nothing is sent to this address; None when it is on the public internet, or in an allowed network."""
    try:
        given = ip_address(address) if isinstance(address, str) else address
    except ValueError:
        return f"{_cut(str(address))!r} is no address"
    if _is_allowed(given, allowed):
        return None
    if isinstance(given, IPv6Address) and given.scope_id is not None:
        return f"{given} belongs to one link of this host"
    inner = _unwrapped(given)
    if not inner.is_global or inner.is_multicast or any(_is_in(inner, network) for network in _REFUSED):
        return f"{given} is in a private or reserved network, where nothing is sent to"
    return _port_refusal(port)


def literal_address(host: str) -> Address | None:
    """The address that a host spells, in any form that resolvers take: 127.1, 0x7f.1, 017700000001, 2130706433."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        pass
    parts = host.lower().split(".")
    if not 1 <= len(parts) <= 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        *first, last = (_number(part) for part in parts)
    except ValueError:
        return None
    room = 256 ** (4 - len(first))
    if any(part > 255 for part in first) or last >= room:
        return None
    value = sum(part << (8 * (3 - place)) for place, part in enumerate(first)) + last
    return IPv4Address(value)


def _host_and_port(place: str, scheme: str) -> tuple[str, int]:
    bracketed = re.fullmatch(r"\[(?P<host>[0-9A-Fa-f:.]+)\](?::(?P<port>[0-9]{1,5}))?", place, re.ASCII)
    plain = re.fullmatch(r"(?P<host>[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?", place, re.ASCII)
    found = bracketed or plain
    if found is None:
        raise InvalidInput(f"{_cut(place)!r} is no host; write host or host:port")
    port = int(found["port"]) if found["port"] else PORTS[scheme]
    if not 0 < port < 65536:
        raise InvalidInput(f"port {port} is none; they are 1 to 65535")
    host = found["host"].lower()
    return host.removesuffix(".") if host != "." else host, port


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if len(text) > 1 and text.startswith("0") else 10)


def _ends_in_number(host: str) -> bool:
    """Whether resolvers could take the host for an address of a form we do not know."""
    return bool(_NUMBER.fullmatch(host.rpartition(".")[2]))


def _is_name_inside(host: str) -> bool:
    return host in NAMES_INSIDE or "." not in host or host.endswith(NAMES_INSIDE[1:])


def _port_refusal(port: int) -> str | None:
    if port in SERVICE_PORTS or (port < 1024 and port not in PORTS.values()):
        return f"port {port} is not sent to: use 80, 443 or one from 1024 on that is no known service's"
    return None


def _is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    return any(_is_in(_unwrapped(address), network) for network in allowed)


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address carries, or the address itself."""
    if isinstance(address, IPv4Address) or int(address) <= 1:
        return address
    for network, shift in _MAPPED:
        if address in network:
            return IPv4Address((int(address) >> shift) & 0xFFFFFFFF)
    return address


def _is_in(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"
