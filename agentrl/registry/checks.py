"""Checks that plug-ins of all kinds make of their settings, each with its one message."""

from __future__ import annotations

import os
import re

from agentrl.types.errors import RecipeError


def at_least_one(plug_in: str, **values: float) -> None:
    """Checks that settings are at least 1.

    Raises:
        RecipeError: one is below.
    """
    for name, value in values.items():
        if value < 1:
            raise RecipeError(f"{plug_in}: {name} must be at least 1, found {value}")


def pattern(text: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Compiles a regular expression of a reward.

    Raises:
        RecipeError: it is not one.
    """
    try:
        return re.compile(text, flags)
    except re.error as error:
        raise RecipeError(f"pattern {text!r}: {error}", place="rewards") from None


def variable(name: str, place: str | None = None) -> str:
    """Returns the value of an environment variable, for example an API key.

    Raises:
        RecipeError: it is not set, or empty.
    """
    if not (value := os.environ.get(name)):
        raise RecipeError(f"the environment has no {name}", place=place, remedy=f"export {name}=...")
    return value


def not_installed(what: str, remedy: str, place: str | None = None) -> RecipeError:
    """Returns the error for a program or package that a plug-in needs and this machine lacks."""
    return RecipeError(f"{what} is not installed", place=place, remedy=remedy)
