"""Nothing is sent into our own network, however the address is spelled and whatever a name resolves to."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from penstock.errors import InvalidInput
from penstock.outbox.addresses import literal_address, parse_endpoint, refusal
from penstock.outbox.transport import AddressRefused, Poster

REFUSED = [
    # loopback in every spelling
    "http://127.0.0.1/", "http://127.1/", "http://127.0.1/", "http://127.255.255.254/", "http://2130706433/",
    "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0x7f.1/", "http://0X7F.1/", "http://017700000001/",
    "http://0177.0.0.1/", "http://0177.0.0.01/", "http://00000177.0.0.1/", "http://127.0.0.1./", "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/", "http://[64:ff9b::127.0.0.1]/", "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/", "http://[2002:7f00:0001::1]/",
    # this host, and nobody
    "http://0.0.0.0/", "http://0/", "http://0x0/", "http://00.0/", "http://0.1.2.3/", "http://[::]/",
    "http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://api.localhost/", "http://intranet/",
    "http://printer.local/", "http://metadata.google.internal/", "http://db.lan/", "http://router.home.arpa/",
    # metadata services and link-local addresses
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:a9fe:a9fe::]/",
    "http://169.254.170.2/", "http://[fe80::1]/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
    "http://168.63.129.16/",
    # private networks
    "http://10.0.0.1/", "http://10.1/", "http://167772161/", "http://172.16.0.1/", "http://172.31.255.255/",
    "http://192.168.0.1/", "http://192.168.257/", "http://0xc0a80001/", "http://[::ffff:10.0.0.1]/",
    "http://[64:ff9b:1::10.0.0.1]/", "http://[fc00::1]/", "http://[fdff::1]/", "http://[fec0::1]/",
    "http://100.64.0.1/", "http://198.18.0.1/", "http://192.0.0.8/", "http://192.0.2.1/", "http://203.0.113.7/",
    "http://[2001:db8::1]/", "http://[100::1]/", "http://[2001:0:7f00:1::]/", "http://192.88.99.1/",
    # groups and what is reserved
    "http://224.0.0.1/", "http://239.255.255.250/", "http://240.0.0.1/", "http://255.255.255.255/", "http://4294967295/",
    "http://[ff02::1]/", "http://[ff0e::1]/",
    # other doors of public hosts
    "http://example.com:22/", "http://example.com:25/", "http://example.com:6379/", "http://example.com:5432/",
    "http://8.8.8.8:53/", "http://8.8.8.8:2375/", "http://example.com:0/", "http://example.com:65536/",
    # what is no web address
    "file:///etc/passwd", "gopher://example.com/_x", "ftp://example.com/", "dict://example.com:11211/",
    "//example.com/", "http:/example.com", "http:///x", "http://", "javascript:alert(1)", "http://[::1", "http://[::1%25eth0]/",
    "http://[fe80::1%eth0]/", "http://example.com#@10.0.0.1/", "http://a b/", "http://example.com\\@127.0.0.1/",
    "http://user@example.com/", "http://user:pw@example.com/", "http://example.com@127.0.0.1/", "http://例え.jp/",
    "http://ｌｏｃａｌｈｏｓｔ/", "http://①②⑦.⓪.⓪.①/", "http://example.com\r\nX: y/", "http://1.2.3.4.5/", "http://256.0.0.1/",
    "http://0x100000000/", "http://4294967296/", "http://1.2.3.08/", "http://-a.com/", "http://a..b/",
    "http://" + "a" * 64 + ".com/",
    "http://example.com/" + "a" * 2000,
]  # fmt: skip
ACCEPTED = {
    "https://example.com/hook?x=1": ("https", "example.com", 443, "/hook?x=1"),
    "HTTPS://Example.COM": ("https", "example.com", 443, "/"),
    "http://example.com.:8080/a": ("http", "example.com", 8080, "/a"),
    "https://8.8.8.8:8443/": ("https", "8.8.8.8", 8443, "/"),
    "https://[2606:4700:4700::1111]/x": ("https", "2606:4700:4700::1111", 443, "/x"),
    "https://xn--r8jz45g.jp/?q": ("https", "xn--r8jz45g.jp", 443, "/?q"),
    "https://example.com?q": ("https", "example.com", 443, "/?q"),
}


@pytest.mark.covers("X-04")
@pytest.mark.parametrize("url", REFUSED)
def test_an_address_inside_is_refused_in_every_spelling(url: str):
    with pytest.raises(InvalidInput):
        parse_endpoint(url)


@pytest.mark.parametrize("url", ACCEPTED)
def test_a_public_address_is_accepted(url: str):
    found = parse_endpoint(url)
    assert (found.scheme, found.host, found.port, found.path) == ACCEPTED[url]


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.1", "127.0.0.1"), ("0x7f.1", "127.0.0.1"), ("010.1.2", "8.1.0.2"), ("3232235777", "192.168.1.1")],
)
def test_hosts_are_read_as_resolvers_read_them(host: str, address: str):
    assert str(literal_address(host)) == address


def test_a_network_that_is_allowed_is_sent_to_at_any_port_and_no_other_is():
    allowed = (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    assert parse_endpoint("http://10.1.2.3:22/", allowed).port == 22
    assert parse_endpoint("http://[::ffff:10.1.2.3]:6379/", allowed).port == 6379
    assert parse_endpoint("http://[fd00::5]/", allowed).host == "fd00::5"
    for url in ("http://10.2.0.1/", "http://127.0.0.1/", "http://8.8.8.8:22/"):
        with pytest.raises(InvalidInput):
            parse_endpoint(url, allowed)
    assert parse_endpoint("http://localhost/", allowed).host == "localhost"  # judged by what it resolves to
    assert refusal("127.0.0.1", 80, allowed) is not None


@pytest.mark.covers("X-04")
@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::ffff:169.254.169.254"], ["fe80::1%eth0"], ["not-one"]]
)
async def test_a_name_is_judged_by_all_its_addresses_before_anything_is_sent(answers: list[str]):
    async def resolve(host: str, port: int) -> list[str]:
        return answers

    poster = Poster(allowed=(), timeout_s=60, resolve=resolve)
    with pytest.raises(AddressRefused, match=r"harmless\.example is not sent to"):
        await poster.post("https://harmless.example/", b"{}", {})
    await poster.close()
