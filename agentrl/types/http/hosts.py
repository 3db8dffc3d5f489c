"""Host allowlist for tools on this machine, with the rules of the sandbox egress proxy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from agentrl.types.errors import ToolError
from agentrl.types.modules import load_file
from agentrl.types.paths import data_path
from agentrl.types.sandbox import HOST


class HostList:
    """Allowlist of hosts.

    A non-public address (loopback, link-local, private, or mapped to one by a translator) is allowed only if the
    address itself is listed, regardless of the name that resolves to it.

    Args:
        allow: entries as `network: {allow: [...]}` of a sandbox has them; None: every public host.

    Raises:
        ValueError: an entry is no host.
    """

    def __init__(self, allow: Sequence[str] | None) -> None:
        check_entries(allow or ())
        self._allow = allow

    def check(self, host: str, port: int) -> None:
        """Checks a host by its name, or by its address if the URL contains one.

        Raises:
            ToolError: the host is not allowed.
        """
        host = host.lower().rstrip(".")
        if self._allow is not None and not _rules().listed(self._allow, host, port):
            allowed = ", ".join(self._allow or ()) or "none"
            raise ToolError(f"{host}:{port} is not among the hosts that may be reached: {allowed}")
        if _is_address(host):
            self.check_addresses(host, port, [host])

    def check_addresses(self, host: str, port: int, addresses: Sequence[str]) -> list[str]:
        """Returns the allowed addresses of a host.

        Raises:
            ToolError: no address is allowed.
        """
        fit = [each for each in addresses if self._may_connect(each, port)]
        if not fit:
            raise ToolError(f"{host} is at {', '.join(addresses[:3])}, which is not a public address")
        return fit

    def _may_connect(self, address: str, port: int) -> bool:
        rules = _rules()
        listed = self._allow is not None and rules.listed(self._allow, address, port)
        return listed or bool(rules.public(address))


def check_entries(entries: Iterable[str]) -> None:
    """Checks entries of a list of hosts.

    Raises:
        ValueError: one is no host.
    """
    if (wrong := next((each for each in entries if not re.fullmatch(HOST, each)), None)) is not None:
        raise ValueError(f"{wrong!r} is no host: write example.org, *.example.org or 192.0.2.1, or that and :port")


def _is_address(host: str) -> bool:
    """Returns True if a host is an IP address.

    Raises:
        ToolError: the host is a number in another form that systems accept as an address (`127.1`).
    """
    if ":" in host:
        return True
    parts = host.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() and str(int(part)) == part for part in parts):
        return all(int(part) < 256 for part in parts)
    if host.replace(".", "").isdigit():
        raise ToolError(f"{host!r} is no host; an IPv4 address is written as 192.0.2.1")
    return False


@cache
def _rules() -> Any:
    """Loads the rules that standalone programs share, as a module."""
    return load_file("agentrl_host_rules", data_path("tools", "shared", "hosts.py"))
