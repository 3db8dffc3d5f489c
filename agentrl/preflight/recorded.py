"""Trainings without the recipe's own rollouts or engine: on recorded episodes, or on replayed completions."""

from __future__ import annotations

from pathlib import Path

from agentrl.config.recipe import Recipe, TrainingRecipe
from agentrl.curriculum.curriculum import Curriculum
from agentrl.curriculum.parts import Filter
from agentrl.engines.replay import ReplayEngine
from agentrl.rollouts.specs import iteration_specs
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.recorded import RecordedGroups, check_sampled_whole
from agentrl.training.stages.plan import RlPlan
from agentrl.types.errors import RecipeError


def on_recorded(recipe: Recipe, recorded: RecordedGroups) -> Recipe:
    """Returns the recipe that trains on recorded groups: iterations as the data allows, without evaluation.

    Raises:
        RecipeError: the recipe has stages or asks for demonstrations, or its loss does not correct for updates since
            the episodes were recorded.
    """
    if recipe.stages or recipe.warm_start is not None:
        raise RecipeError(
            "recorded episodes train the recipe's model, without stages before",
            place="stages" if recipe.stages else "warm_start",
            remedy="--set model.path=FOLDER with the weights that were recorded, and --set warm_start=null",
        )
    train = TrainingRecipe.of(recipe).train
    train = train.model_copy(update={"iterations": recorded.iterations(train.groups)})
    if train.iterations > 1 and not train.corrects_stale_tokens:
        raise RecipeError(
            f"the recorded groups make {train.iterations} updates, and from the second on the policy is not the one "
            "that was recorded; the loss does not correct for that",
            place="train.importance",
            remedy="--set train.old_logprobs=engine, which clips against the policy that was recorded, or "
            "train.importance={high: 2}; one update on all groups (train.groups) needs neither",
        )
    return recipe.model_copy(update={"train": train, "eval": None})


def check_recorded(plan: RlPlan) -> None:
    """Checks that a training on recorded episodes plays none.

    Raises:
        RecipeError: a part of the curriculum plays demonstrations.
    """
    for part in plan.parts.make_curriculum():
        if isinstance(part, Filter) and type(part).demonstrate is not Filter.demonstrate:
            raise RecipeError(
                f"{part.name} plays demonstrations, and recorded episodes train without playing any",
                place="curriculum",
                remedy="leave it out: --set curriculum=[]",
            )


def replay_of(run: Path) -> ReplayEngine:
    """Opens the engine that replays the completions of a stored run.

    Raises:
        RecipeError: the run has no log-probabilities.
        TrainError: its tokens were not sampled from the whole distribution.
        StoreError: the folder is not a run.
    """
    replay = ReplayEngine(RunDir.read(run))
    check_sampled_whole(replay.run)
    if not replay.trainable:
        raise RecipeError(
            "was played by a script or an API: its tokens have no log-probabilities to train on",
            place=str(run),
            remedy="take a run of the torch or vllm engine",
        )
    return replay


def check_replay(plan: RlPlan, replay: ReplayEngine) -> None:
    """Checks that a replayed run has the episodes of the first iteration.

    Raises:
        StoreError: one is missing.
    """
    recipe, parts = plan.recipe, plan.parts
    curriculum = Curriculum(parts.make_curriculum(), seed=recipe.seed, iterations=recipe.train.iterations)
    groups = curriculum.draw(parts.tasks, recipe.train.groups, recipe.train.group_size, recipe.agent.max_turns, 0)
    replay.require(spec.id for spec in iteration_specs(groups, 0, plan.stage.prefix))
