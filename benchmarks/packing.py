"""Cost of a gradient in each layout of the same episodes: `python -m benchmarks.packing [--rounds 5]`.

Groups of 8 episodes: one prompt, several turns of sampled and observed tokens. The gradient of the clipped policy loss
(token mean) is computed from: one padded row a turn (as a framework does that records calls); padded episodes; episodes
end to end in one row; our prefix tree; and by TRL's GRPOTrainer on padded episodes (extra `trl`). The gradients must
be equal to 1e-6. Logits are computed at the predictions only; by TRL at all completion tokens, as it does. One
thread, CPU seconds of this process, the least of `--rounds`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.training.model.packing import pack
from agentrl.training.model.policy import Policy
from agentrl.types.sample import TrainingSample
from benchmarks.harness import Benchmark, Report, Row

GROUP = 8
TREE = "prefix tree (agentrl)"
TRL = "TRL 1.16 GRPOTrainer"


class Gradient(Row):
    """The same gradient in one layout. `error` is relative, to that of the first layout."""

    layout: str
    tokens: int
    cpu_s: float
    of_first: float
    error: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Gradient,
    kind="compare",
    beside=f"{TRL}, a padded row a turn, padded episodes, episodes end to end",
    smoke={
        "groups": 1, "turns": 2, "prompt": 16, "sampled": 4, "observed": 4, "vocabulary": 100, "hidden": 64,
        "layers": 1, "rounds": 1,
    },
    runs=("--rounds 1",),
    minutes=3,
)  # fmt: skip
Layout = Callable[[Any, Sequence[TrainingSample]], int]
"""Adds the gradient of the loss to the model's; returns how many tokens went through it, padding included."""


def model_of(vocabulary: int, hidden: int, layers: int) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
            num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128), max_position_embeddings=8192,
            tie_word_embeddings=True,
        )
    ).eval()  # fmt: skip


def episodes(
    groups: int, turns: int, prompt: int, sampled: int, observed: int, vocabulary: int
) -> list[TrainingSample]:
    """Rows whose lengths vary by a third, as those of real episodes do."""
    rng = np.random.default_rng(0)

    def tokens(n: int) -> list[int]:
        return [*map(int, rng.integers(3, vocabulary, max(1, round(n * rng.uniform(2 / 3, 4 / 3)))))]

    rows = []
    for group in range(groups):
        start = tokens(prompt)
        for member in range(GROUP):
            ids, spans = list(start), []
            for turn in range(turns):
                said = tokens(sampled)
                spans.append((turn, len(ids), len(ids) + len(said)))
                ids += said + tokens(observed) * (turn < turns - 1)
            mask = np.zeros(len(ids), np.bool_)
            advantages = np.zeros(len(ids), np.float32)
            for _, at, end in spans:
                mask[at:end], advantages[at:end] = True, rng.normal()
            behaviour = np.zeros(len(ids), np.float32)
            rows.append(
                TrainingSample(
                    np.array(ids), mask, behaviour, advantages, f"g{group}/e{member}", f"g{group}", 0, 1.0, spans
                )
            )
    return rows


def by_turn(rows: Sequence[TrainingSample]) -> list[TrainingSample]:
    """One row a turn: the history up to its end, only the turn trained."""
    out = []
    for row in rows:
        for turn, start, end in row.turn_spans:
            mask = np.arange(end) >= start
            out.append(
                dataclasses.replace(
                    row,
                    token_ids=row.token_ids[:end],
                    loss_mask=mask,
                    behaviour_logprob=row.behaviour_logprob[:end],
                    advantage=row.advantage[:end] * mask,
                    turn_spans=[(turn, start, end)],
                )
            )
    return out


def loss(logprob: Tensor, old: Tensor, advantage: Tensor, tokens: int) -> Tensor:
    """PPO's clipped loss, summed over the tokens given and divided by those of all rows."""
    ratio = (logprob - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum() / tokens


def trained(rows: Sequence[TrainingSample], name: str) -> Tensor:
    return torch.from_numpy(np.concatenate([getattr(row, name)[row.loss_mask] for row in rows]))


def padded(model: Any, rows: Sequence[TrainingSample], batch: int = GROUP) -> int:
    """Right-padded rows, `batch` at a time; sorted by length, which is the kindest to padding."""
    rows, forwarded = sorted(rows, key=lambda row: len(row.token_ids)), 0
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    for first in range(0, len(rows), batch):
        part = rows[first : first + batch]
        longest = max(len(row.token_ids) for row in part)
        ids = np.zeros((len(part), longest), np.int64)
        for line, row in zip(ids, part, strict=True):
            line[: len(row.token_ids)] = row.token_ids
        seen = np.arange(longest) < np.array([[len(row.token_ids)] for row in part])
        device = model.device
        fed, attended = torch.from_numpy(ids).to(device), torch.from_numpy(seen).long().to(device)
        hidden = model.base_model(fed, attention_mask=attended, use_cache=False)
        where = [(line, at) for line, row in enumerate(part) for at in np.flatnonzero(row.loss_mask)]
        lines, ends = (torch.tensor(each, device=device) for each in zip(*where, strict=True))
        logprob = torch.log_softmax(model.lm_head(hidden.last_hidden_state[lines, ends - 1]), -1)
        logprob = logprob.gather(1, fed[lines, ends][:, None])[:, 0]
        old, advantages = (trained(part, column).to(device) for column in ("behaviour_logprob", "advantage"))
        loss(logprob, old, advantages, tokens).backward()  # type: ignore[no-untyped-call]
        forwarded += ids.size
    return forwarded


def end_to_end(model: Any, rows: Sequence[TrainingSample]) -> int:
    """Each group's episodes in one row, told apart by positions that begin anew (transformers' packing)."""
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    for first in range(0, len(rows), GROUP):
        part = rows[first : first + GROUP]
        ids = torch.from_numpy(np.concatenate([row.token_ids for row in part]))
        positions = torch.from_numpy(np.concatenate([np.arange(len(row.token_ids)) for row in part]))
        hidden = model.base_model(ids[None], position_ids=positions[None], use_cache=False).last_hidden_state[0]
        at = torch.from_numpy(np.flatnonzero(np.concatenate([row.loss_mask for row in part])))
        logprob = torch.log_softmax(model.lm_head(hidden[at - 1]), -1).gather(1, ids[at][:, None])[:, 0]
        loss(logprob, trained(part, "behaviour_logprob"), trained(part, "advantage"), tokens).backward()  # type: ignore[no-untyped-call]
    return sum(len(row.token_ids) for row in rows)


def tree(policy: Policy, rows: Sequence[TrainingSample], budget: int = 4096) -> int:
    """What agentrl trains on."""
    tokens, forwarded = sum(int(row.loss_mask.sum()) for row in rows), 0
    old, advantages = [row.behaviour_logprob for row in rows], [row.advantage for row in rows]
    for packed in pack(rows, budget):
        logprob, _ = policy(packed)
        before, advantage = (torch.from_numpy(packed.gather(column)) for column in (old, advantages))
        loss(logprob, before, advantage, tokens=tokens).backward()  # type: ignore[no-untyped-call]
        forwarded += len(packed.token_ids)
    return forwarded


def trl_step(model: Any, rows: Sequence[TrainingSample], folder: str) -> Callable[[], int]:
    """TRL's loss and its gradient, by GRPOTrainer's own code, on what our adapter hands it: a group at a time."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig

    from agentrl.integrations.trl.grpo import EpisodeGRPOTrainer

    words = {f"w{number}": number for number in range(model.config.vocab_size)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="w0", eos_token="w1", unk_token="w2")
    config = GRPOConfig(
        folder, per_device_train_batch_size=GROUP, num_generations=GROUP, loss_type="dapo", report_to=[], use_cpu=True,
        gradient_accumulation_steps=len(rows) // GROUP, bf16=False, max_completion_length=4096,
        gradient_checkpointing=False,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": sorted({row.group_id for row in rows})})
    trainer = EpisodeGRPOTrainer(
        model, args=config, train_dataset=data, processing_class=tokenizer, rollouts=lambda prompts: list(rows)
    )
    trainer.current_gradient_accumulation_steps = len(rows) // GROUP
    batch = trainer._generate_and_score_completions([{"prompt": row.group_id} for row in rows])
    parts = [
        {name: value if value.ndim == 0 else value[first : first + GROUP] for name, value in batch.items()}
        for first in range(0, len(rows), GROUP)
    ]

    def step() -> int:
        for part in parts:
            trainer._compute_loss(model, dict(part)).backward()
        return sum(part["prompt_ids"].numel() + part["completion_ids"].numel() for part in parts)

    return step


def timed(step: Callable[[], int], model: Any, rounds: int) -> tuple[float, int, Tensor]:
    """CPU seconds, the least of some rounds, tokens, and the gradient."""
    times, forwarded = [], 0
    for _ in range(rounds):
        model.zero_grad()
        began = time.process_time()
        forwarded = step()
        times.append(time.process_time() - began)
    gradient = torch.cat([p.grad.flatten().double() for p in model.parameters()])
    return min(times), forwarded, gradient


def main() -> int:
    parser = BENCHMARK.parser()
    for name, value in dict(groups=2, turns=10, prompt=200, sampled=24, observed=40, vocabulary=4000, hidden=256,
                            layers=4, rounds=3).items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    model = model_of(given.vocabulary, given.hidden, given.layers)
    rows = episodes(given.groups, given.turns, given.prompt, given.sampled, given.observed, given.vocabulary)
    # Behaviour log-probabilities a little away from the policy's, so that some tokens are clipped.
    with torch.no_grad():
        rng = np.random.default_rng(1)
        for packed in pack(rows, 4096):
            logprobs = Policy(model)(packed)[0].numpy()
            packed.scatter(
                (logprobs + rng.normal(0, 0.1, len(logprobs))).astype(np.float32),
                [row.behaviour_logprob for row in rows],
            )
    policy = Policy(model)
    layouts: dict[str, Callable[[], int]] = {
        "one padded row a turn": lambda: padded(model, by_turn(rows)),
        "padded episodes": lambda: padded(model, rows),
        "episodes end to end": lambda: end_to_end(model, rows),
        TREE: lambda: tree(policy, rows),
    }
    with tempfile.TemporaryDirectory() as folder:
        if given.smoke:
            report.leave_out(TRL)
        elif importlib.util.find_spec("trl") is None:
            report.miss(TRL, "pip install 'agentrl-framework[trl]'")
        else:
            layouts[TRL] = trl_step(model, rows, folder)
        report.plan(len(layouts))
        model.eval()
        found: list[Gradient] = []
        exact = None
        for name, step in layouts.items():
            seconds, tokens, gradient = timed(step, model, given.rounds)
            exact = gradient if exact is None else exact
            first = found[0].cpu_s if found else seconds
            error = float(f"{(gradient - exact).norm() / exact.norm():.2g}")
            found.append(
                Gradient(layout=name, tokens=tokens, cpu_s=seconds, of_first=round(seconds / first, 3), error=error)
            )
            report.done(name)
    print(f"{'layout':<26}{'tokens':>9}{'CPU s':>9}{'of first':>10}{'gradient error':>16}")
    ours = next(each.cpu_s for each in found if each.layout == TREE)
    for each in found:
        print(f"{each.layout:<26}{each.tokens:>9}{each.cpu_s:>9.3f}{each.of_first:>10}{each.error:>16}")
        report.row(each)
        if each.layout != TREE:
            report.ratio("CPU s of a gradient", (TREE, ours), (each.layout, each.cpu_s))
        if each.error >= 1e-6:
            report.problem(f"{each.layout}: the gradient is off by {each.error}")


if __name__ == "__main__":
    sys.exit(main())
