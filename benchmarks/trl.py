"""A training step of recipes/lookup-llm here and in TRL: `python -m benchmarks.trl [--rounds 1] [--steps 2]`.

SmolLM2-135M after the recipe's warm start (made once, in `--out`), 4 groups of 8 episodes, one optimiser step on all,
the top 12 layers trained, GRPO, one thread. TRL: GRPOTrainer with `environment_factory`, transformers' generation,
bf16 autocast, the tags form by a chat template and a `response_template`. Here: the recipe, with all that an iteration
does (episodes stored, weights handed over and compared). Processor seconds of a step, rollout and update, all threads
counted, a process for each arm and round, in turn; the first step of a process, which warms caches, is left out. Each
arm tells the tokens that it sampled. Here sampling ends at a closing tag, in TRL with the end-of-turn token after it.
The last line is JSON; `ratio` is TRL's mean by ours.
"""

from __future__ import annotations

import argparse
import asyncio
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
from agentrl.rollout.builder import build
from agentrl.rollout.player import LocalPlayers
from agentrl.train.assembly import training
from agentrl.train.stages.offline import OfflineTraining
from agentrl.train.stages.preflight import check_stages
from agentrl.types.reporter import Reporter

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
    stages = check_stages(recipe)
    stage, parts = stages[0]
    players = LocalPlayers(parts.open_backend())
    try:
        await OfflineTraining(stage, [each for each, _ in stages], parts, run, Reporter(), players).train()
    finally:
        run.close()


async def _loop(recipe: Recipe, folder: Path, steps: int) -> dict[str, list[float]]:
    """Prepares a training in a folder, and trains some steps: processor seconds and sampled tokens of each."""
    run = begin_run(folder, recipe, "train")
    found: dict[str, list[float]] = {"cpu_s": [], "sampled": []}
    parts = build(recipe)
    try:
        async with training(parts, run, Reporter(), LocalPlayers(parts.open_backend())) as loop:
            for step in range(steps):
                began = time.process_time()
                await loop.step()
                found["cpu_s"].append(time.process_time() - began)
                nodes = [node for e in run.episodes(iteration=step, split="train") for node in e.nodes]
                found["sampled"].append(sum(len(node.token_ids) for node in nodes if node.kind == "sampled"))
    finally:
        run.close()
    return found


def ours(weights: Path, steps: int, seed: int) -> dict[str, list[float]]:
    """An arm of agentrl."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("lookup-llm", [*COMMON, "warm_start=null", f"model.path={weights}", f"seed={seed}"])
        return asyncio.run(_loop(recipe, Path(folder) / "run", steps))


def theirs(weights: Path, steps: int, seed: int) -> dict[str, list[float]]:
    """An arm of TRL."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from agentrl.train.model.policy import train_top_layers

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="processes for each arm")
    parser.add_argument("--steps", type=int, default=2, help="measured in each process, after a first one")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-trl"), help="where the warm start is kept")
    parser.add_argument("--warm-start", type=int, metavar="STEPS", help="of the warm start; default: the recipe's")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.arm is not None:
        with no_progress_bars():
            found = ARMS[given.arm](given.out / "checkpoints" / "it-00000", given.steps + 1, given.seed)
        print(json.dumps({name: [round(value, 2) for value in values[1:]] for name, values in found.items()}))
        return
    steps = [] if given.warm_start is None else [f"warm_start.steps={given.warm_start}"]
    warm_start(load_recipe("lookup-llm", [*COMMON, *steps]), given.out)
    results: dict[str, list[dict[str, list[float]]]] = {name: [] for name in ARMS}
    for number in range(given.rounds):
        for name, found in results.items():
            command = [sys.executable, "-m", "benchmarks.trl", "--arm", name, "--out", str(given.out)]
            run = subprocess.run(
                [*command, "--steps", str(given.steps), "--seed", str(number + 1)],
                stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            found.append(json.loads(run.stdout.splitlines()[-1]))
            print(name, found[-1], file=sys.stderr, flush=True)
    means = {name: mean(value for part in found for value in part["cpu_s"]) for name, found in results.items()}
    print(json.dumps({**results, "ratio": round(means["trl"] / means["agentrl"], 2)}))


if __name__ == "__main__":
    main()
