"""Which IP addresses a webhook may reach: the last check, on the address that is connected to.

A URL has many spellings and a name may answer differently each time, so only the address that the
socket is about to be opened to counts. The list is our own: ``ipaddress`` calls several ranges global
that lead inside (NAT64, 6to4, Teredo and other embeddings of IPv4 addresses, RFC 6890 and its
successors).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

_LOOPBACK: Final = tuple(
    ip_network(text) for text in ("127.0.0.0/8", "0.0.0.0/8", "::1/128", "::/128")
)
# Not reachable from the public Internet, or of no use as the end of a connection.
_INSIDE: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; the metadata services of clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",
        "::/128",
        "::1/128",
        "64:ff9b:1::/48",  # local-use NAT64
        "100::/64",  # discard
        "2001::/23",  # Teredo and other protocol assignments
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fc00::/7",  # unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local
        "ff00::/8",  # multicast
    )
)
_NAT64: Final = ip_network("64:ff9b::/96")
_SIX_TO_FOUR: Final = ip_network("2002::/16")
_COMPATIBLE: Final = ip_network("::/96")


def is_loopback(text: str) -> bool:
    """Whether *text*, an IP address, leads to this machine, in whatever it is wrapped."""
    return any(_within(each, _LOOPBACK) for each in _meanings(text))


def is_inside(text: str) -> bool:
    """Whether *text*, an IP address, is no public unicast address."""
    return any(_within(each, _INSIDE) for each in _meanings(text))


def _within(address: IPv4Address | IPv6Address, networks: tuple[object, ...]) -> bool:
    return any(address in network for network in networks)  # type: ignore[operator]


def _meanings(text: str) -> list[IPv4Address | IPv6Address]:
    """Return the address and each IPv4 address that is embedded in it."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv4Address):
        return [address]
    number = int(address)
    found: list[IPv4Address | IPv6Address] = [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64 or address in _COMPATIBLE:
        found.append(IPv4Address(number & 0xFFFFFFFF))
    if address in _SIX_TO_FOUR:
        found.append(IPv4Address((number >> 80) & 0xFFFFFFFF))
    return found
