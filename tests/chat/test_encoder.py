"""The tokens of rendered texts are kept, and nothing else changes."""

from __future__ import annotations

from agentrl.chat.encoder import LONGEST, TEXTS, TextEncoder
from agentrl.chat.samples import MARK
from agentrl.chat.tokenizer import ByteTokenizer


class Counting(ByteTokenizer):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def encode(self, text: str, special: bool) -> list[int]:
        self.asked += 1
        return super().encode(text, special)


END = "<|im_end|>"


def test_the_same_text_is_tokenised_once() -> None:
    tokenizer = Counting()
    encode = TextEncoder(tokenizer, END)
    first = encode(f"a{MARK}b", "")
    first.append(0)  # the caller's own
    assert encode(f"a{MARK}b", "") == tokenizer.encode("a", True) + tokenizer.encode("b", True)
    assert tokenizer.asked == 2 + 2
    assert encode(f"a{MARK}b", END) == first[:-1]
    assert tokenizer.asked == 2 + 2 + 2, "what stands before it may change its tokens"


def test_long_texts_are_not_kept_and_old_ones_go() -> None:
    tokenizer = Counting()
    encode = TextEncoder(tokenizer, END)
    for _ in range(2):
        assert len(encode("x" * (LONGEST + 1), "")) == LONGEST + 1
    assert tokenizer.asked == 2
    for number in range(TEXTS + 1):
        encode(str(number), "")
    assert len(encode._kept) == TEXTS
    asked = tokenizer.asked
    encode("1", "")
    assert tokenizer.asked == asked
    encode("0", "")
    assert tokenizer.asked == asked + 1
