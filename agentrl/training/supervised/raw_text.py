"""Raw text to learn from, without a chat template: a document of a corpus, for mid-training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agentrl.chat.tokenizer import Tokenizer
from agentrl.types.sample import TrainingSample


@dataclass(frozen=True)
class RawText:
    """A document. All of its tokens train, and the end token after them.

    Attributes:
        id: of the document; its pieces are numbered.
        place: the origin, for error messages.
        length: maximum number of tokens of a piece; None: the model's context.
    """

    id: str
    text: str
    place: str = ""
    length: int | None = None

    @property
    def group_id(self) -> str:
        return self.id

    def texts(self) -> Iterator[str]:
        """The text, to train a tokenizer."""
        yield self.text

    def samples(self, tokenizer: Tokenizer, max_context: int) -> list[TrainingSample]:
        """Returns samples with advantage 1: one per piece.

        The first piece follows the end token of another document; each later piece, the last token of the piece before
        it. These first tokens are context only.
        """
        end = tokenizer.stop_ids[0]
        ids = [end, *tokenizer.encode(self.text, False), end]
        step = min(self.length or max_context, max_context) - 1
        return [self._sample(ids[at : at + step + 1], number) for number, at in enumerate(range(0, len(ids) - 1, step))]

    def _sample(self, ids: list[int], number: int) -> TrainingSample:
        mask = np.arange(len(ids)) > 0
        return TrainingSample(
            token_ids=np.array(ids, np.int64),
            loss_mask=mask,
            behaviour_logprob=np.zeros(len(ids), np.float32),
            advantage=mask.astype(np.float32),
            episode_id=f"{self.id}/{number}",
            group_id=self.id,
            branch_id=0,
            turn_spans=[(0, 1, len(ids))],
        )
