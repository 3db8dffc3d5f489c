"""Rules of lists of allowed hosts, and which addresses are public. Standard library only."""

from __future__ import annotations

import ipaddress

Entry = tuple[str, set[int]]
"""Host, and its ports."""

# IANA's registries of special-purpose addresses (RFC 6890 and later), without the globally reachable ones.
NOT_PUBLIC = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
]  # fmt: skip
GLOBAL = ipaddress.ip_network("2000::/3")  # the only IPv6 range assigned to internet hosts
HOLDING = [ipaddress.ip_network(text) for text in ("::ffff:0:0/96", "64:ff9b::/96")]  # IPv4 address in the last 32 bits


def public(text: str) -> bool:
    """Returns True if an address is a public internet address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if any(address.version == 6 and address in network for network in HOLDING):
        address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.version == 6 and address not in GLOBAL:
        return False
    return not any(address.version == network.version and address in network for network in NOT_PUBLIC)


def entry(text: str) -> Entry:
    """Parses an entry into (host, ports)."""
    host, _, port = text.lower().partition(":")
    return host.rstrip("."), {int(port)} if port else {80, 443}


def listed(entries: list[Entry], host: str, port: int) -> bool:
    """Returns True if an entry allows a host or address at a port."""
    return any(
        port in ports and (host == name or (name[:2] == "*." and host.endswith(name[1:]))) for name, ports in entries
    )
