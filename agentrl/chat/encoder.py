"""Cache of the tokens of rendered texts."""

from __future__ import annotations

from agentrl.chat.samples import MARK
from agentrl.chat.tokenizer import Tokenizer

TEXTS, LONGEST = 1024, 8192
"""Maximum number of cached texts, and their maximum length in characters."""


class TextEncoder:
    """Tokenises the output of a chat template, and caches the last texts.

    The episodes of a group open with the same text, and often have equal observations.

    Args:
        end: control token before each piece of a marked text.
    """

    def __init__(self, tokenizer: Tokenizer, end: str) -> None:
        self._tokenizer, self._end = tokenizer, end
        self._kept: dict[tuple[str, str], list[int]] = {}

    def __call__(self, text: str, after: str) -> list[int]:
        """Tokenises `text`, piece by piece if it is marked.

        Each piece is tokenised behind a control token, which is then removed: some tokenizers add a space at the very
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
