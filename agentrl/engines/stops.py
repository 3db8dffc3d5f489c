"""Stop strings, exact to the token: a completion ends with the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.types.engine import Completion
from agentrl.types.episode import VersionSpan


class StopStrings:
    """Finds the token that completes a stop string. The token is not cut, even if its text extends beyond the string.

    Args:
        decode: decodes token ids to text, control tokens included.
        strings: stop strings, not empty.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], strings: Sequence[str]) -> None:
        self._decode, self._strings = decode, tuple(strings)
        # A token has a byte or more, with few exceptions. Four more, because the window may begin inside a character.
        self._window = max(len(string.encode("utf-8", "replace")) for string in strings) + 4
        self._longest = max(map(len, strings)) + 4
        self._ends = {string[-1] for string in strings}
        self._may_end: dict[int, bool] = {}

    def completed(self, token_ids: Sequence[int], begin: int) -> bool:
        """Returns True if the last token completes a stop string in the text from token `begin` on.

        Assumes that no earlier token did, and decodes only the last few tokens.
        """
        return self._completed(token_ids, begin, len(token_ids))

    def first(self, token_ids: Sequence[int]) -> int | None:
        """Number of tokens up to and including the first that completes a stop string; None if no token does."""
        counts = range(1, len(token_ids) + 1)
        return next((count for count in counts if self._completed(token_ids, 0, count)), None)

    def _completed(self, token_ids: Sequence[int], begin: int, end: int) -> bool:
        last = token_ids[end - 1]
        if (may := self._may_end.get(last)) is None:
            may = self._may_end[last] = self._holds_an_end(self._decode([last]))
        if not may:
            return False
        size = self._window
        text = self._decode(token_ids[max(begin, end - size) : end])
        while len(text) < self._longest and end - size > begin:  # some tokens have no text
            size *= 2
            text = self._decode(token_ids[max(begin, end - size) : end])
        return any(string in text for string in self._strings)

    def _holds_an_end(self, text: str) -> bool:
        """Returns True if a token with this text can complete a string: it has the last character, or part of it.

        A token that is decoded alone may lose its leading space.
        """
        return not text or "\ufffd" in text or any(end in text or end.isspace() for end in self._ends)


def cut(completion: Completion, count: int) -> Completion:
    """The first `count` tokens of a completion, with `finish="stop"`."""
    if count == len(completion.token_ids):
        spans = completion.versions
    else:
        spans = [VersionSpan(s.version, s.start, min(s.end, count)) for s in completion.versions if s.start < count]
    return Completion(
        token_ids=completion.token_ids[:count],
        logprobs=completion.logprobs[:count],
        finish="stop",
        versions=spans,
        usage=completion.usage,
        queue_s=completion.queue_s,
        decode_s=completion.decode_s,
    )
