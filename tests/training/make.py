"""Tiny real models, rows of multi-turn episodes, and the plain layout that packing is measured against."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from agentrl.training import checkpoint
from agentrl.training.stages.course import Course
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.sample import TrainingSample, training_samples
from agentrl.types.task import Task

VOCABULARY = 97
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)


def llama(seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes}))


def qwen3(seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "head_dim": 8, **changes}))


def episode(id: str, prompt: list[int], turns: int, rng: np.random.Generator, branch_after: int | None = None):
    """A recorded episode of several turns; with `branch_after`, the turn after that one is tried a second time."""
    nodes = [Node(parent=-1, kind="prompt", token_ids=prompt)]
    records: list[Turn] = []

    def say(parent: int) -> int:
        ids = rng.integers(3, VOCABULARY, rng.integers(2, 6)).tolist()
        logprobs = (-rng.random(len(ids)) * 4).tolist()
        nodes.append(Node(parent=parent, kind="sampled", token_ids=ids, logprobs=logprobs))
        records.append(Turn(index=len(records), node=len(nodes) - 1, text="", finish="stop"))
        return len(nodes) - 1

    at = 0
    for turn in range(turns):
        said = say(at)
        if turn == branch_after:
            say(at)
        nodes.append(
            Node(parent=said, kind="observation", token_ids=rng.integers(3, VOCABULARY, rng.integers(1, 8)).tolist())
        )
        at = len(nodes) - 1
    say(at)
    return Episode(
        id=id, group_id=id.split("/")[0], task=Task.of("t", "go"), status="done", nodes=nodes, turns=records, reward=1.0
    )


def make_rows(groups: int = 2, size: int = 3, turns: int = 4, seed: int = 0, prompt: int = 9) -> list[TrainingSample]:
    """Rows of episodes that share their group's prompt; every third episode branches."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        start = rng.integers(3, VOCABULARY, prompt).tolist()
        for member in range(size):
            played = episode(f"g{group}/e{member}", start, turns, rng, branch_after=1 if member % 3 == 0 else None)
            rows += training_samples(played, rng.normal(size=len(played.turns)).tolist())
    return rows


def turn_rows(rows: list[TrainingSample]) -> list[TrainingSample]:
    """One row a trained turn: the whole history up to the turn's end, only that turn trained."""
    out = []
    for row in rows:
        for turn, start, end in row.turn_spans:
            mask = np.arange(end) >= start
            out.append(
                dataclasses.replace(
                    row,
                    token_ids=row.token_ids[:end],
                    loss_mask=mask,
                    behaviour_logprob=np.where(mask, row.behaviour_logprob[:end], 0).astype(np.float32),
                    advantage=np.where(mask, row.advantage[:end], 0).astype(np.float32),
                    turn_spans=[(turn, start, end)],
                )
            )
    return out


def padded_logprobs(model: PreTrainedModel, rows: list[TrainingSample]) -> torch.Tensor:
    """Log-probabilities of the trained tokens, row after row, by the model's own attention on padded rows."""
    longest = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    attend = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row.token_ids)] = torch.from_numpy(row.token_ids)
        attend[number, : len(row.token_ids)] = 1
    logits = model(input_ids=ids, attention_mask=attend, use_cache=False).logits.float()
    logprobs = torch.log_softmax(logits / torch.tensor([row.temperature or 1.0 for row in rows])[:, None, None], -1)
    out = []
    for number, row in enumerate(rows):
        trained = torch.from_numpy(np.flatnonzero(row.loss_mask))
        out.append(logprobs[number, trained - 1, ids[number, trained]])
    return torch.cat(out)


def write_checkpoint(folder: Path, model: Any, tokenizer_saver: Any, state: dict, extra: dict, **policy: Any) -> None:
    """A checkpoint as a run writes it. `policy`: as for `write_policy`."""
    with checkpoint.writing(folder) as new:
        checkpoint.write_policy(new, model, tokenizer_saver, **policy)
        checkpoint.complete(new, folder, state, extra)


def taken(course: Course, trainer: Trainer, first: int = 0) -> Iterator[dict[str, float]]:
    """Takes the steps of a course, one per iteration of the result: their metrics."""
    for samples, lr in course.steps_from(first):
        yield trainer.fit(samples, course.loss, lr)
