"""Parameters of a request, and refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentrl.types.errors import AgentRLError


class RequestError(AgentRLError):
    """A request that cannot be answered.

    Args:
        status: of the HTTP response.
    """

    def __init__(self, status: int, message: str, *, place: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, place=place, remedy=remedy)
        self.status = status


class Query:
    """Parameters by name. Empty ones count as absent."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name: value for name, value in given.items() if value}

    def text(self, name: str) -> str | None:
        """Returns a parameter, or None."""
        return self._given.get(name)

    def needed(self, name: str) -> str:
        """Returns a parameter.

        Raises:
            RequestError: it is absent.
        """
        if (value := self.text(name)) is None:
            raise RequestError(422, f"the parameter {name!r} is missing")
        return value

    def several(self, name: str) -> list[str]:
        """Returns the values of a parameter, which commas separate."""
        return [value for value in (self.text(name) or "").split(",") if value]

    def number(self, name: str) -> float | None:
        """Returns a parameter as a number, or None.

        Raises:
            RequestError: it is no finite number.
        """
        if (text := self.text(name)) is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise RequestError(422, f"{name} is {text!r}", remedy="give a number")
        return value

    def integer(self, name: str, default: int, *, at_most: int = 1 << 40) -> int:
        """Returns a parameter as a whole number from 0 to `at_most`.

        Raises:
            RequestError: it is none.
        """
        value = self.number(name)
        if value is None:
            return default
        if value != int(value) or value < 0:
            raise RequestError(422, f"{name} is {self.text(name)!r}", remedy="give a whole number from 0 on")
        return min(int(value), at_most)
