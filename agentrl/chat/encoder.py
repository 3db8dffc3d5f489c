"""The tokens of rendered texts, kept for a while."""

from __future__ import annotations

from agentrl.chat.samples import MARK
from agentrl.chat.tokenizer import Tokenizer

TEXTS, LONGEST = 1024, 8192
"""Texts that are kept, and their maximum length in characters."""


class TextEncoder:
    """Tokenises what a chat template wrote, and keeps the last texts.

    The episodes of a group open with the same text, and often observe the same.

    Args:
        end: the control token after which the pieces of a marked text are put.
    """

    def __init__(self, tokenizer: Tokenizer, end: str) -> None:
        self._tokenizer, self._end = tokenizer, end
        self._kept: dict[tuple[str, str], list[int]] = {}

    def __call__(self, text: str, after: str) -> list[int]:
        """Tokenises piece by piece where `text` is marked.

        A piece is put after a control token, which is taken off again: some tokenizers add a space at the very
        beginning of a text. `after`: the control token before the first piece; "" at the beginning of an episode.
        """
        kept = self._kept.get((text, after))
        if kept is None:
            kept = self._tokenised(text, after)
            if len(text) <= LONGEST:
                while len(self._kept) >= TEXTS:
                    self._kept.pop(next(iter(self._kept)), None)
                self._kept[text, after] = kept
        return kept.copy()

    def _tokenised(self, text: str, after: str) -> list[int]:
        ids: list[int] = []
        for piece in text.split(MARK):
            encoded = self._tokenizer.encode(after + piece, True)
            ids += encoded[1:] if after else encoded
            after = self._end
        return ids
