"""Document of a search corpus."""

from __future__ import annotations

import msgspec


class Document(msgspec.Struct, frozen=True):
    """Document of a search corpus.

    Attributes:
        id: unique id in the corpus; the argument of `fetch`.
        title: title, with double weight in the ranking.
    """

    id: str
    title: str
    text: str
