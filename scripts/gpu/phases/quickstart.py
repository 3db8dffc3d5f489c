"""The quickstart in bfloat16, small: a policy from scratch learns its way through two mazes.

With bubblewrap and namespaces it walks real folders in sandboxes (recipes/quickstart), else the same mazes without a
shell (benchmarks/maze). What runs on the GPU is the same: demonstrations, sampling, updates, weights handed over.
"""

from __future__ import annotations

from agentrl.api.train import train
from agentrl.commands.doctor import examine
from agentrl.store.run_dir import RunDir
from scripts.gpu.phase import Phase
from scripts.gpu.runner import ROOT

SMALL = [
    "tasks.args.mazes=2", "tasks.args.size=3", "tasks.args.extra_doors=1", "tasks.args.distance=3",
    "agent.max_turns=10", "train.iterations=14", "train.groups=4", "train.lr=1.0e-3", "eval={episodes: 48}",
    "warm_start.episodes=64", "warm_start.steps=150", "warm_start.lr=2.0e-3", "model.scratch.vocab_size=340",
    "concurrency=64",
]  # fmt: skip
SMALLEST = ["train.iterations=2", "eval={episodes: 8}", "warm_start.episodes=8", "warm_start.steps=4", "train.groups=2"]
NEEDED = ("bubblewrap", "namespaces")
"""Beginnings of the doctor's findings without which there are no sandboxes."""

LEARNS = 0.25
"""By how much the share of solved mazes must grow."""


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    sandboxed = all(finding.ok for finding in examine() if finding.what.startswith(NEEDED))
    recipe = "quickstart" if sandboxed else str(ROOT / "benchmarks/maze")
    phase.figure("sandbox", "bubblewrap" if sandboxed else "none: the mazes without a shell")
    on = [f"model.device={phase.device}", "model.dtype=bfloat16", "train.precision=bfloat16", "engine={}"]
    out = phase.folder / "run"
    train(recipe, overrides=[*SMALL, *(SMALLEST if phase.smoke else []), *on], out=out)
    with RunDir.read(out) as run:
        lines = run.metrics()
    evaluations = [line["success"] for line in lines if line["split"] == "eval"]
    steps = [line for line in lines if line["split"] == "train"]
    phase.figure("solved before", evaluations[0])
    phase.figure("solved after", evaluations[-1])
    phase.figure("iterations", len(steps))
    for name in ("rollout_s", "train_s", "mismatch_mean", "mismatch_max"):
        phase.figure(f"{name}, last", steps[-1][name])
    phase.check(
        phase.smoke or evaluations[-1] >= evaluations[0] + LEARNS,
        f"it solved {evaluations[0]:.2f} of the mazes before and {evaluations[-1]:.2f} after",
    )
    phase.end()


if __name__ == "__main__":
    main()
