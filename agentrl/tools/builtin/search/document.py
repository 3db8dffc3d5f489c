"""A document that is searched for."""

from __future__ import annotations

import msgspec


class Document(msgspec.Struct, frozen=True):
    """What is found.

    Attributes:
        id: unique in the corpus; what `fetch` takes.
        title: counts twice in the ranking.
    """

    id: str
    title: str
    text: str
