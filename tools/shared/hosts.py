"""Rules of lists of allowed hosts, and which addresses are public. Standard library only."""

from __future__ import annotations

import ipaddress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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


def listed(entries: Iterable[str], host: str, port: int) -> bool:
    """Returns True if an entry allows a host or address at a port.

    Args:
        entries: `host`, `*.domain` (its subdomains) or an address, each for ports 80 and 443, or with `:port` (an
            address of IPv6 then in brackets); `*`: every host and port.
    """
    host = host.lower().rstrip(".")
    for entry in map(str.lower, entries):
        if entry == "*":
            return True
        name, colon, number = entry.rpartition(":")
        bare = entry.count(":") > 1 and not name.endswith("]")  # an address of IPv6 without a port
        name, ports = (name, {number}) if colon and number.isdigit() and not bare else (entry, {"80", "443"})
        name = name.strip("[]").rstrip(".")
        if str(port) in ports and (host == name or (name.startswith("*.") and host.endswith(name[1:]))):
            return True
    return False
