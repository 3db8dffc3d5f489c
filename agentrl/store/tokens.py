"""`tokens/`: what the trainer computed for each token of a few groups, a file for each update (`train.record_tokens`).

A file is JSON lines in one zstd frame: `zstdcat rl-00003.jsonl.zst` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import zstandard

from agentrl.store.info import replace
from agentrl.types.errors import StoreError

_SUFFIX = ".jsonl.zst"


class TurnTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that a turn sampled: a number each, in the order of `Node.token_ids`.

    Attributes:
        advantage: after credit and refinement.
        logprob: by the trainer, in the last pass that trained the token, before its optimiser step.
        ratio: of the policy in that pass to the old policy.
        entropy: of the policy in that pass, nats.
        clipped: whether the loss removed the token's gradient.
    """

    turn: int
    advantage: list[float]
    logprob: list[float]
    ratio: list[float]
    entropy: list[float]
    clipped: list[bool]


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The trained tokens of an episode's branch in an update.

    Attributes:
        iteration: of the line of metrics of the update; 0: not stored yet.
        stage: its name.
    """

    episode_id: str
    group_id: str
    branch_id: int
    turns: list[TurnTokens]
    iteration: int = 0
    stage: str = ""


_decode = msgspec.json.Decoder(TokenRecord).decode


def write_tokens(run: Path, stage: str, iteration: int, records: Sequence[TokenRecord]) -> None:
    """Writes the records of an update. An update that is repeated after a kill replaces its file."""
    named = [msgspec.structs.replace(each, stage=stage, iteration=iteration) for each in records]
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in named)
    (run / "tokens").mkdir(exist_ok=True)
    compress = zstandard.ZstdCompressor(level=6, write_checksum=True).compress
    replace(run / "tokens" / f"{stage}-{iteration:05d}{_SUFFIX}", compress(lines), durable=False)


def read_tokens(run: Path, *, episode_id: str | None = None, iteration: int | None = None) -> Iterator[TokenRecord]:
    """Yields the records of a run, by stage and iteration; none were kept, unless `train.record_tokens` is set.

    Args:
        episode_id, iteration: only those of this episode, or of this update.

    Raises:
        StoreError: a file is damaged.
    """
    number = "*" if iteration is None else f"*-{iteration:05d}"
    for path in sorted((run / "tokens").glob(f"{number}{_SUFFIX}")):
        try:
            data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
            found = [_decode(line) for line in data.splitlines()]
        except (zstandard.ZstdError, msgspec.DecodeError, MemoryError) as error:
            raise StoreError(f"cannot be read: {error}", place=str(path), remedy="delete the file") from None
        yield from (each for each in found if episode_id is None or each.episode_id == episode_id)
