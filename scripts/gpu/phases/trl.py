"""A GRPO step here and in TRL, on the same device: wall seconds of sampling and update.

A model of a known shape with random weights never ends by itself: both sample the same number of tokens, from the
prompts of recipes/lookup-llm. Both keep float32 weights and compute in bfloat16. TRL: GRPOTrainer with transformers'
generation. Here: the recipe, with all that an iteration does (episodes stored, weights handed over and compared). The
first step, which warms caches, is left out.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from agentrl.api.run_dirs import begin_run
from agentrl.config.loader import load_recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.models.load import no_progress_bars
from agentrl.preflight.plan import plan
from agentrl.rollouts.runner import LocalRunners
from agentrl.training.assembly import training
from agentrl.types.reporter import Reporter
from scripts.gpu.model_folder import in_a_folder
from scripts.gpu.phase import Phase

SIZE, LR = 8, 1e-6


class Sizes:
    """Groups, tokens of a completion, rows of a pass in TRL, and measured steps."""

    def __init__(self, smoke: bool) -> None:
        self.groups, self.tokens, self.rows, self.steps = (1, 4, 8, 1) if smoke else (8, 128, 16, 3)


def ours(phase: Phase, weights: Path, sizes: Sizes) -> list[tuple[float, float]]:
    """Seconds and sampled tokens of each step."""
    recipe = load_recipe(
        "lookup-llm",
        [f"model={{path: {weights}, device: {phase.device}, dtype: bfloat16}}", "warm_start=null", "eval=null",
         "credit={use: grpo}", f"sampling.max_tokens={sizes.tokens}", "agent.max_turns=1",
         f"train.groups={sizes.groups}",
         f"train.group_size={SIZE}", f"train.minibatch={sizes.groups * SIZE}", "train.trainable=null",
         "train.importance=null", f"train.lr={LR}", "train.lr_schedule=constant"],
    )  # fmt: skip

    async def play() -> list[tuple[float, float]]:
        run, stage, found = begin_run(phase.folder / "run", recipe, "train"), plan(recipe).rl[-1], []
        try:
            async with training(stage, run, Reporter(), LocalRunners(stage.parts.open_backend())) as loop:
                for step in range(sizes.steps + 1):
                    began = time.perf_counter()
                    await loop.step()
                    took = time.perf_counter() - began
                    nodes = [node for each in run.episodes(iteration=step, split="train") for node in each.nodes]
                    sampled = sum(len(node.token_ids) for node in nodes if node.kind == "sampled")
                    found.append((took, float(sampled)))
            lines = [line for line in run.metrics() if line["split"] == "train"][1:]
            for name in ("rollout_s", "train_s"):
                phase.figure(f"agentrl, {name}", mean(line[name] for line in lines))
        finally:
            run.close()
        return found

    return asyncio.run(play())


def theirs(phase: Phase, weights: Path, sizes: Sizes) -> list[tuple[float, float]]:
    """Seconds and sampled tokens of each step."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    recipe = load_recipe("lookup-llm", [])
    system = {"role": "system", "content": recipe.agent.system}
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed).tasks[: sizes.groups * (sizes.steps + 1)]
    times: list[float] = []
    lengths: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if phase.device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - self.began)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "completions/mean_length" in logs:
                lengths.append(float(logs["completions/mean_length"]) * sizes.groups * SIZE)

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(str(completion)) % 2) for completion in completions]

    config = GRPOConfig(
        output_dir=str(phase.folder / "trl"), per_device_train_batch_size=sizes.rows, num_generations=SIZE,
        gradient_accumulation_steps=sizes.groups * SIZE // sizes.rows, max_steps=sizes.steps + 1, learning_rate=LR,
        lr_scheduler_type="constant", beta=0.0, temperature=1.0, max_completion_length=sizes.tokens, bf16=True,
        gradient_checkpointing=False, use_cpu=phase.device == "cpu", report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True,
    )  # fmt: skip
    GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32), reward, args=config,
        train_dataset=Dataset.from_list([{"prompt": [system, *task.instruction]} for task in tasks]),
        processing_class=AutoTokenizer.from_pretrained(weights), callbacks=[Clock()],
    ).train()  # fmt: skip
    return list(zip(times, lengths, strict=True))


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    sizes = Sizes(phase.smoke)
    weights = in_a_folder("tiny" if phase.smoke else "0.5b", phase.folder / "model", phase.device)
    seconds = {}
    with no_progress_bars():
        for name, arm in {"agentrl": ours, "trl": theirs}.items():
            found = arm(phase, weights, sizes)[1:]
            seconds[name] = mean(took for took, _ in found)
            phase.figure(f"{name}, s/step", seconds[name])
            phase.figure(f"{name}, sampled/step", mean(sampled for _, sampled in found))
            if phase.device == "cuda":
                phase.figure(f"{name}, peak GB", torch.cuda.max_memory_allocated() / 1e9)
            phase.free_models()
            if phase.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
    phase.figure("times as fast as TRL", seconds["trl"] / seconds["agentrl"])
    phase.end()


if __name__ == "__main__":
    main()
