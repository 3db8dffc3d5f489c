"""The formats of exported episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.integrations.exchange import atif, inspect_log, openai, sharegpt
from agentrl.integrations.exchange.told import Origin, ToldEpisode

Write = Callable[[Iterable[ToldEpisode], Path, Origin], None]


class Format(NamedTuple):
    """A format of episodes.

    Attributes:
        write: writes episodes to a file or folder.
        lost: what no file of the format holds, besides what the conversation loses.
    """

    write: Write
    lost: tuple[str, ...]


_RECORD = ("times", "whole outputs that were cut")
_TOKENS = ("tokens and log-probabilities", "rewards of turns", *_RECORD)


def _lines(row: Callable[[ToldEpisode], dict[str, Any]]) -> Write:
    def write(episodes: Iterable[ToldEpisode], out: Path, origin: Origin) -> None:
        with out.open("w") as file:
            file.writelines(json.dumps(row(each), ensure_ascii=False) + "\n" for each in episodes)

    return write


FORMATS: dict[str, Format] = {
    "openai": Format(_lines(openai.row), _TOKENS),
    "sharegpt": Format(_lines(sharegpt.row), (*_TOKENS, "ids of calls", "names of results")),
    "atif": Format(
        atif.write,
        (
            "tokens of prompts and of what the agent began replies with",
            "components and spans of the rewards of turns",
            *_RECORD,
        ),
    ),
    "inspect": Format(inspect_log.write, _TOKENS),
}
"""By name."""
