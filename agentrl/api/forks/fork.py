"""Resuming a stored episode from one of its turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.api import event_loop
from agentrl.api.forks.source import Source
from agentrl.api.recipes import Overrides
from agentrl.api.rollout import named_engine
from agentrl.api.run import Run
from agentrl.api.run_dirs import begin_run, closing
from agentrl.distributed.worker_pool import open_runners
from agentrl.reporters.reporting import reporting
from agentrl.reporters.terminal import Terminal
from agentrl.rollouts.builder import build
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.engines import start_to_sample
from agentrl.rollouts.specs import EpisodeSpec, fork_specs, missing
from agentrl.types.closing import close_all
from agentrl.types.errors import RecipeError, StoreError
from agentrl.types.reporter import Reporter


def fork(
    run: str | Path | Run,
    episode: str,
    turn: int | Sequence[int],
    n: int = 8,
    *,
    script: str | None = None,
    checkpoint: str | Path | None = None,
    changed_code: bool = False,
    overrides: Overrides = (),
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> Run:
    """Resumes a stored episode, `n` times for each turn. The same call again adds only the missing episodes.

    The turns before `turn` are replayed with their recorded tokens, which are not trained on. Tools are restored to
    their saved state if all of them define `save` and `restore`; else the recorded calls run again, and a result that
    differs from the record is an error.

    Args:
        episode: its id, or a unique part of it.
        turn: the first turn that is sampled again, or several: each is a group.
        script: a script of the recipe that continues; default: the script of the run, else its policy.
        checkpoint: the policy that continues: `last`, `best` or an iteration of the run, or a checkpoint folder;
            default: the last of a training, else the recipe's model.
        changed_code: resume although code in the recipe's folder has changed since the run.
        overrides: keys of the run's recipe to override, as for `rollout`.
        out: the run directory; default: `runs/NAME-fork`.
        reporters: as for `rollout`.

    Raises:
        StoreError: the run, episode or turn does not exist, or the episode cannot be resumed.
        RecipeError: the recipe has an error.
    """
    turns = [turn] if isinstance(turn, int) else [*turn]
    with Source(run, episode, changed_code) as source:
        for each in turns:
            source.check_turn(each)
        recipe = source.recipe_for(checkpoint, overrides)
        if (most := recipe.agent.max_turns) <= max(turns):
            raise RecipeError(
                f"agent.max_turns is {most}, and turn {max(turns)} is to be sampled",
                place="agent.max_turns",
                remedy=f"--set agent.max_turns={max(turns) + 1}, or more",
            )
        script = script if script is not None else source.script
        path = Path(out) if out is not None else Path("runs") / f"{recipe.name}-fork"
        record, run_id, seed = source.record, source.run_id, source.seed
        parent = {"run": run_id, "path": str(source.path), "episode": record.id, "turns": turns, "n": n}
    planned = [spec for each in turns for spec in fork_specs(record, run_id, each, n, seed)]
    parts = build(recipe)
    if script is not None:
        parts.check_script(script)
    if unable := next((type(tool).__name__ for tool in parts.make_tools() if not tool.forkable), None):
        raise StoreError(
            f"the tool {unable} cannot be forked (forkable = False)",
            place=f"run {run_id}, episode {record.id}",
            remedy="--set tools=[...] without it, if the episode does not call it",
        )
    made = begin_run(path, recipe, "fork", tools=parts.definitions, script=script, parent=parent)
    with closing(made):
        made.update_info(planned=[spec.id for spec in planned], finished=False)
        with reporting(made, *([Terminal()] if reporters is None else reporters)) as reporter:

            async def play() -> None:
                todo: list[EpisodeSpec] = missing(planned, made)
                if not todo:
                    return
                async with open_runners(parts) as runners:
                    engine, renderer = named_engine(parts, script)
                    try:
                        await start_to_sample(engine, reporter.note)
                        reporter.phase("episodes", len(todo))
                        await Collector(parts, made, reporter, runners).collect(planned, engine, renderer)
                    finally:
                        await close_all(engine)

            event_loop.run(play)
        made.update_info(finished=True)
    return Run(path)
