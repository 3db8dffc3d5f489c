"""The recipe: one YAML file that defines a task and its training.

An unknown key is an error that names the file, the line, and the nearest key. Values of the form `./file.py:Name` or
`pkg.module:Name` refer to user code; `./file` is relative to the recipe.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from agentrl.config.agent import AgentSettings, PolicySettings, SamplingSettings
from agentrl.config.credit import CreditSettings, Hindsight, InformationGain
from agentrl.config.engine import EngineSettings
from agentrl.config.limits import Limits
from agentrl.config.model import ModelSettings
from agentrl.config.rewards import Gate, RewardRoute, RewardSettings
from agentrl.config.scale import ScaleSettings
from agentrl.config.sections import MAY_CHANGE, NAMES_FILE, PlugIn, Section, Short, alone, misplaced
from agentrl.config.stages import PreferenceStage, SftStage, StopSettings
from agentrl.config.tasks import CurriculumPart, TaskSettings
from agentrl.config.train import ImitationLossSettings, OptimiserSettings, TrainSettings
from agentrl.registry.references import load_object
from agentrl.types.episode import POLICY
from agentrl.types.errors import RecipeError, StoreError, nearest
from agentrl.types.reporter import UNNAMED
from agentrl.types.sandbox import SandboxSpec


class SandboxSettings(PlugIn):
    """The sandboxes of tools that need one. Other keys are the backend's own settings."""

    use: str = Field("namespace", description="A backend (agentrl list sandboxes), or ./file.py:Name.")
    spec: SandboxSpec = Field(default_factory=SandboxSpec, description="Limits and content of every sandbox.")
    pool: Annotated[int, MAY_CHANGE] = Field(
        0, ge=0, description="Number of sandboxes that are created in advance, while models decode."
    )


class ToolSettings(PlugIn):
    """One entry of `tools`: a name or reference, and its settings: `shell`, `{shell: {timeout_s: 5}}`, or
    `{use: shell, timeout_s: 5}`."""

    use: str = Field(description="A tool (agentrl list tools), or ./task.py:MyTool.")


class Track(PlugIn):
    """One entry of `track`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the tracker's own settings."""

    use: str = Field(description="tensorboard, wandb, mlflow, trackio, or ./task.py:MyReporter.")


class AboutSettings(Section):
    """Description of a recipe for `agentrl recipe list`. Profiles and `agentrl init --package` also read `images`."""

    trains: str | None = Field(None, description="What the policy learns, in a few words.")
    size: str | None = Field(None, description="How large a training is: the model, the episodes, the time it took.")
    measured: str | None = Field(
        None,
        description="What a training of this recipe gave, from where to where; null: no policy has learned it.",
    )
    paper: str | None = Field(None, description="Of a method: the paper that publishes it, name and arXiv number.")
    certainty: Literal["A", "B", "C"] | None = Field(
        None,
        description="Of a method. A: read in the authors' code; B: the rule of the paper, confirmed by a second "
        "source; C: reconstructed from the paper.",
    )
    differs: str | None = Field(None, description="Of a method: what differs from the paper, and why.")
    sandbox: bool = Field(False, description="An episode needs a sandbox: bubblewrap or a container engine.")
    images: bool = Field(False, description="The task shows images: profiles take a model that sees.")


class WarmStart(Section, Short):
    """Supervised training on demonstrations of a script, before reinforcement learning."""

    script: str = Field(description="Name of the script (under `scripts`) that plays the demonstrations.")
    episodes: int = Field(256, gt=0, description="Number of demonstrations.")
    steps: int = Field(600, gt=0, description="Optimiser steps.")
    batch: int = Field(16, gt=0, description="Demonstrations per step.")
    lr: float = Field(1e-3, gt=0, description="Peak learning rate.")
    loss: ImitationLossSettings = Field(
        default_factory=ImitationLossSettings, description="A name, or {use: NAME, ...} with its settings."
    )

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name alone is the script."""
        return alone(value, "script")


Kind = Literal["sft", "preference", "rl"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
_SOURCES: dict[Kind, str] = {
    "sft": "{script: NAME}, {jsonl: ./file.jsonl}, {parquet: ./file.parquet}, {hf: NAME}, {run: NAME} or "
    "{text: ./file.jsonl}",
    "preference": "{jsonl: ./file.jsonl}, {parquet: ./file.parquet}, {hf: NAME} or {run: NAME}",
}
SPLITS = ("train", "eval", "demo", "rollout")
"""Prefixes of episode ids in a recipe without named stages."""

Cut = Literal["keep", "mask", "drop"]
"""Treatment in training of an episode that a limit ended."""


class KeepSettings(Section):
    """The `train.keep` key: checkpoints that are not deleted. `agentrl eval`, `fork` and `export` name them with
    `--checkpoint last`, `best` or an iteration."""

    last: Annotated[int, MAY_CHANGE] = Field(2, ge=1, description="Number of newest checkpoints.")
    best: str | None = Field(
        None,
        pattern=r"^eval/.+$",
        description="A metric of the evaluations (eval/success): the checkpoint with its highest value is kept, and "
        "the next stage starts from it instead of the last one. Every evaluation then has a checkpoint.",
    )


class TrainSection(TrainSettings):
    """Training: the sizes of the loop, and the settings of the optimiser."""

    iterations: Annotated[int, MAY_CHANGE] = Field(
        100, gt=0, description="Number of iterations (rollout, credit, update)."
    )
    groups: int = Field(8, gt=0, description="Groups (tasks) per iteration.")
    group_size: int = Field(8, gt=0, description="Episodes per group.")
    over_provision: int = Field(
        0,
        ge=0,
        description="Additional episodes of every group: it ends when group_size of its episodes have, and the others "
        "are aborted. Favours short episodes (docs/async.md).",
    )
    over_provision_groups: int = Field(
        0,
        ge=0,
        description="Additional groups of every update: it trains on the first `groups` that are whole, and the others "
        "are aborted. Favours tasks of short episodes (docs/async.md). Only with max_staleness: 0.",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="0: synchronous training. Above 0: rollouts continue while the trainer computes, at most this many "
        "updates ahead.",
    )

    stream: bool = Field(
        False, description="Compute the gradient of a group as soon as it has ended: one step in all (docs/async.md)."
    )
    canary: Annotated[bool, MAY_CHANGE] = Field(
        True,
        description="After every update, compare a few log-probabilities of engine and trainer: weights that did not "
        "reach the engine are an error.",
    )

    truncated: Cut = Field(
        "keep",
        description="Episodes that a limit of turns or tokens ended. keep: train on them; mask: use them in baselines "
        "only (DAPO's overlong filtering); drop: ignore them.",
    )
    timed_out: Cut = Field("keep", description="The same for episodes that limits.episode_s ended.")

    stop: Annotated[StopSettings | None, MAY_CHANGE] = Field(
        None, description="Rule that ends training before the last iteration."
    )
    keep: KeepSettings = Field(default_factory=KeepSettings, description="Checkpoints that are not deleted.")

    @property
    def corrects_stale_tokens(self) -> bool:
        """True if the loss corrects for tokens that older policies sampled."""
        return self.importance is not None or self.old_logprobs == "engine"

    @model_validator(mode="after")
    def _no_group_is_late_and_aborted(self) -> TrainSection:
        if self.max_staleness and self.over_provision_groups:
            raise ValueError(
                "'over_provision_groups' aborts slow groups, and with 'max_staleness' they train later: choose one"
            )
        return self

    @model_validator(mode="after")
    def _a_streamed_update_is_one_step(self) -> TrainSection:
        lacks = [f"{key}: 0" for key in ("max_staleness", "over_provision_groups") if getattr(self, key)]
        lacks += self.lacks_for_one_step(self.groups * self.group_size)
        if self.stream and lacks:
            raise ValueError(f"'stream' adds up the gradients of groups for one step: it needs {', '.join(lacks)}")
        return self

    @model_validator(mode="after")
    def _stale_tokens_are_corrected(self) -> TrainSection:
        if self.max_staleness and not self.corrects_stale_tokens:
            raise ValueError(
                "'max_staleness' trains on tokens of older policies: set 'importance' (for example {high: 2}), or "
                "old_logprobs: engine, which clips against the policy that sampled them"
            )
        return self


class EvalSettings(Section):
    """Evaluation before, during and after training."""

    tasks: TaskSettings | None = Field(None, description="Tasks of the evaluation; default: the training tasks.")
    episodes: int = Field(64, gt=0, description="Episodes per evaluation.")
    k: int = Field(1, gt=0, description="Tries of each task. With several, pass@k and pass^k are measured.")
    by: str | None = Field(
        None, description="A field of the tasks' data, such as `source`: success is also given by its values."
    )
    every: Annotated[int, MAY_CHANGE] = Field(
        0, ge=0, description="Iterations between evaluations; 0: evaluate only at start and end."
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of the evaluation.")


class RlStage(Section):
    """Reinforcement learning. A section of the stage replaces the recipe's; `train` is merged key by key."""

    tasks: TaskSettings | None = None
    agent: AgentSettings | None = None
    tools: list[ToolSettings] | None = None
    rewards: dict[str, RewardSettings] | None = None
    reward_of: RewardRoute | None = None
    success: str | None = None
    gate: list[Gate] | None = None
    credit: CreditSettings | None = None
    information_gain: InformationGain | None = None
    hindsight: Hindsight | None = None
    sampling: SamplingSettings | None = None
    curriculum: list[CurriculumPart] | None = None
    eval: EvalSettings | None = None
    train: TrainSection = Field(default_factory=TrainSection, description="Keys that differ from the recipe's `train`.")


class StageSettings(Section):
    """One entry of `stages`: a name, and exactly one of the kinds."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]+$", description="Name of the stage in episode ids, metrics and checkpoints."
    )
    sft: SftStage | None = Field(None, description="Supervised training on a script, a file, a run or raw text.")
    preference: PreferenceStage | None = Field(None, description="Training on preferences from a file or a run.")
    rl: RlStage | None = Field(None, description="Reinforcement learning.")

    @property
    def kind(self) -> Kind:
        """The kind of the stage."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def sections(self) -> dict[str, Any]:
        """The sections of the recipe that are its own."""
        names = RlStage.model_fields if self.rl is not None else ("tasks",)
        settings = getattr(self, self.kind)
        return {name: own for name in names if (own := getattr(settings, name, None)) is not None}

    @property
    def records(self) -> bool:
        """True if the stage records episodes that a later stage may train on."""
        return self.rl is not None or (self.sft is not None and self.sft.script is not None)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        """`rl:` without keys is a stage with the recipe's settings; the other kinds need data."""
        named = [kind for kind in KINDS if kind in value] if isinstance(value, dict) else []
        if len(named) != 1 or value[named[0]] is not None:
            return value
        if named == ["rl"]:
            return {**value, "rl": {}}
        raise misplaced(named[0], "is empty: it names no training data", None, _SOURCES[named[0]])

    @model_validator(mode="after")
    def _one_kind(self) -> StageSettings:
        if sum(getattr(self, kind) is not None for kind in KINDS) != 1:
            raise ValueError(f"a stage needs exactly one of {', '.join(KINDS)}")
        if self.name in SPLITS:
            raise ValueError(f"{self.name!r} is reserved: it names a split in episode ids; choose another name")
        if self.name == UNNAMED:
            raise ValueError(f"{self.name!r} is reserved for recipes without stages; choose another name")
        return self


class Recipe(Section):
    """A task and its training."""

    name: str = Field(
        description="Name of the recipe; also the default name of run directories. Required, except with `base`: there "
        "the name of the file or folder is the default."
    )
    about: Annotated[AboutSettings, MAY_CHANGE] = Field(
        default_factory=AboutSettings, description="What the recipe trains, and what was measured, for readers."
    )
    seed: int = Field(0, ge=0, description="Seed of tasks, sampling, initial weights and the order of training.")
    tasks: TaskSettings = Field(
        default_factory=TaskSettings, description="Source of tasks. `proxy` and `train --from` need none."
    )
    agent: AgentSettings = Field(default_factory=AgentSettings)
    tools: list[ToolSettings] = Field(
        [], description="Built-in tools by name (shell, files, search, answer, ...), or references to user code."
    )
    openings: Annotated[Literal["same", "differ"], MAY_CHANGE] = Field(
        "same",
        description="Whether the episodes of a group start with the same prompt. same: a rollout warns if they do "
        "not, and agentrl check fails. differ: prompts may differ (a date, random names).",
    )
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    rewards: dict[str, RewardSettings] = Field({}, description="Reward components by name.")
    reward_of: RewardRoute | None = Field(
        None, description="The field of task.data that names the components of a task; default: all score every task."
    )
    success: str | None = Field(
        None,
        description="The component that tells success, from 1 on; default: the one named success, else the reward.",
    )
    gate: list[Gate] = Field([], description="Components that must reach a threshold before other components count.")
    credit: CreditSettings = Field(default_factory=lambda: CreditSettings(use="grpo"))
    information_gain: InformationGain | None = Field(
        None, description="Score the gold answer before every turn; on by default if the credit estimator needs it."
    )
    hindsight: Hindsight | None = Field(
        None,
        description="Score every turn again with the outcome in the prompt; on by default if the credit estimator "
        "needs it.",
    )
    model: ModelSettings | None = Field(None, description="The policy.")
    engine: EngineSettings = Field(
        default_factory=EngineSettings, description="The inference engine that samples from the policy."
    )
    policies: dict[str, PolicySettings] = Field(
        {}, description="Further speakers by name, of which adapters may train (docs/policies.md)."
    )
    scripts: Annotated[dict[str, str], NAMES_FILE] = Field(
        {}, description="Scripted policies in Python, by name (oracle, random, ...)."
    )
    sampling: SamplingSettings = Field(default_factory=SamplingSettings)
    limits: Annotated[Limits, MAY_CHANGE] = Field(default_factory=Limits)
    concurrency: Annotated[int, MAY_CHANGE] = Field(64, gt=0, description="Maximum number of episodes in flight.")
    scale: Annotated[ScaleSettings, MAY_CHANGE] = Field(
        default_factory=ScaleSettings, description="Placement of rollout workers, trainer ranks and vLLM servers."
    )
    warm_start: WarmStart | None = None
    train: TrainSection | None = None
    curriculum: list[CurriculumPart] = Field(
        [], description="Parts that select tasks and the episodes to train on: names with settings, or user code."
    )
    eval: EvalSettings | None = None
    stages: list[StageSettings] = Field(
        [], description="Training stages, each starting from the policy of the previous; default: warm_start, train."
    )
    track: Annotated[list[Track], MAY_CHANGE] = Field(
        [], description="Experiment trackers for the metrics: tensorboard, wandb, mlflow, trackio, or user code."
    )

    # The folder of the recipe: paths and references in it are relative to this folder.
    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _bases: tuple[Path, ...] = PrivateAttr(())
    _profile: str | None = PrivateAttr(None)
    _places: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def base(self) -> Path:
        """Folder of the recipe file."""
        return self._base

    @property
    def bases(self) -> tuple[Path, ...]:
        """Files that the recipe is written on top of, the nearest first."""
        return self._bases

    @property
    def profile(self) -> str | None:
        """The profile that was merged over the recipe, as it was named."""
        return self._profile

    def place_of(self, key: str) -> str:
        """Returns where a key was set (`file:line`, or `--set ...`), for messages; the key itself if it is unknown, as
        of a recipe that was read from a run. A stage may have a key of `train` from the recipe."""
        _, _, shared = key.partition(".rl.")
        place = self._places.get(key) or self._places.get(shared or key)
        return key if place is None else f"{place}: {key}"

    def script(self, name: str) -> Callable[..., Any]:
        """Returns the code of one of its scripts, for a script on top of it.

        Raises:
            RecipeError: it has no such script, or its code cannot be imported.
        """
        if name not in self.scripts:
            raise RecipeError(f"{self.name} has no script {name!r}", remedy=nearest(name, self.scripts, "it has"))
        code: Callable[..., Any] = load_object(self.scripts[name], self.base)
        return code

    @model_validator(mode="before")
    @classmethod
    def _stages_inherit(cls, value: Any) -> Any:
        """Each stage's `train`, with missing keys taken from the recipe's `train`."""
        if not isinstance(value, dict) or not isinstance(value.get("stages"), list | tuple):
            return value
        train = _as_written(value.get("train"))
        return {**value, "stages": [_inheriting(_as_written(stage), train) for stage in value["stages"]]}

    @model_validator(mode="after")
    def _scripts_exist(self) -> Recipe:
        asked = {"warm_start.script": self.warm_start.script} if self.warm_start is not None else {}
        for index, stage in enumerate(self.stages):
            if stage.sft is not None and stage.sft.script is not None:
                asked[f"stages.{index}.sft.script"] = stage.sft.script
        for name, policy in self.policies.items():
            if policy.script is not None and policy.script != "random":
                asked[f"policies.{name}.script"] = policy.script
        for key, script in asked.items():
            if script not in self.scripts:
                raise misplaced(key, f"is {script!r}, but scripts has {sorted(self.scripts) or 'none'}", script)
        return self

    @model_validator(mode="after")
    def _stages_follow(self) -> Recipe:
        if self.stages and self.warm_start is not None:
            remedy = f"stages: [{{name: warm_start, sft: {{script: {self.warm_start.script}}}}}, ...]"
            raise misplaced("warm_start", "a recipe with stages has no warm_start: make it a stage", None, remedy)
        names = [stage.name for stage in self.stages]
        for index, stage in enumerate(self.stages):
            if stage.name in names[:index]:
                raise misplaced(f"stages.{index}.name", "another stage has that name", stage.name)
            offline = stage.sft or stage.preference
            if offline is not None and offline.run in names:
                self._refers_back(index, stage.kind, offline.run)
        return self

    def _refers_back(self, index: int, kind: Kind, name: str) -> None:
        """Raises unless a stage takes its episodes from an earlier stage that plays episodes."""
        at = [stage.name for stage in self.stages].index(name)
        earlier = [stage.name for stage in self.stages[:index] if stage.records]
        remedy = f"earlier stages that play episodes: {', '.join(earlier) or 'none'}; or name a run directory"
        if at >= index:
            why = f"stage {name!r} is " + ("the stage itself" if at == index else f"a later one (the {_nth(at)})")
            raise misplaced(f"stages.{index}.{kind}.run", f"{why}: it has no episodes yet", name, remedy)
        if not self.stages[at].records:
            raise misplaced(f"stages.{index}.{kind}.run", f"stage {name!r} plays no episodes", name, remedy)

    @model_validator(mode="after")
    def _names_of_policies(self) -> Recipe:
        if POLICY in self.policies:
            raise misplaced(
                f"policies.{POLICY}", "is the name of the policy that trains, the section 'model'", None, "another name"
            )
        if self.policies and self.agent.is_program:
            raise misplaced("policies", "has no effect: a program opens no contexts", None, "remove the section")
        for name, policy in self.policies.items():
            if self.scale.rollout_workers and policy.launches_servers:
                why, remedy = "every rollout worker would start a server of its own", "start one, and name it in 'urls'"
                raise misplaced(f"policies.{name}.engine", why, None, remedy)
        speaker = self.agent.talks_with
        if speaker is not None and speaker not in (*self.policies, POLICY):
            message = f"talks with the speaker {speaker!r}, and 'policies' has {[*self.policies] or 'none'}"
            raise misplaced("agent", message, speaker, f"policies: {{{speaker}: {{engine: ...}}}}")
        return self

    @model_validator(mode="after")
    def _policies_that_train(self) -> Recipe:
        for name, policy in self.policies.items():
            unknown = next((each for each in policy.outcome or () if each not in self.rewards), None)
            if unknown is not None:
                has = f"is no component: rewards has {sorted(self.rewards) or 'none'}"
                raise misplaced(f"policies.{name}.outcome", f"{unknown!r} {has}", unknown)
            own = policy.sampling
            if policy.train and own is not None and own.temperature != self.sampling.temperature:
                message = "differs from that of the recipe's 'sampling', and one training has one temperature"
                raise misplaced(f"policies.{name}.sampling.temperature", message, own.temperature)
            if policy.train and own is not None and own.top_p < 1:
                raise misplaced(f"policies.{name}.sampling.top_p", "is below 1, and the policy trains", own.top_p, "1")
        return self

    @model_validator(mode="after")
    def _each_stage_is_a_recipe(self) -> Recipe:
        """Each stage with the sections that it shares obeys all rules of a recipe."""
        if not self.stages:
            return self
        shared = self.model_dump(mode="json") | {"stages": []}
        for index, stage in enumerate(self.stages):
            own = stage.model_dump(mode="json")[stage.kind]
            try:
                Recipe.model_validate(shared | {name: own[name] for name in stage.sections})
            except ValidationError as error:
                found = error.errors()[0]
                where = [str(part) for part in found["loc"]]
                inside = where[:1] and where[0] in stage.sections
                key = ".".join([*(["stages", str(index), stage.kind] if inside else []), *where])
                message = f"{found['msg'].removeprefix('Value error, ')} (in the stage {stage.name!r})"
                remedy = found.get("ctx", {}).get("remedy")
                raise misplaced(key or f"stages.{index}", message, found["input"], remedy) from None
        return self

    @model_validator(mode="after")
    def _places_something(self) -> Recipe:
        scale = self.scale
        if scale.use == "ray" and not scale.rollout_workers and scale.trainer_ranks == 1 and not self.launches_servers:
            raise ValueError("scale.use is 'ray', but nothing runs there: set for example scale.rollout_workers: 2")
        return self

    @property
    def required_model(self) -> ModelSettings:
        """The section `model`.

        Raises:
            RecipeError: the recipe has none.
        """
        if self.model is None:
            remedy = "--script NAME plays a script, or --set 'model={path: FOLDER}'"
            raise RecipeError("the recipe has no 'model'", remedy=remedy)
        return self.model

    @property
    def launches_servers(self) -> bool:
        """True if the engine's servers are started on the Ray cluster of `scale`."""
        return self.scale.use == "ray" and self.engine.starts_servers


class TrainingRecipe(Recipe):
    """A recipe that trains: it has the sections that training needs."""

    model: ModelSettings
    train: TrainSection

    @classmethod
    def of(cls, recipe: Recipe, *, served: bool = False) -> TrainingRecipe:
        """The recipe as a training recipe.

        Args:
            served: the model is behind the engine, an API: the section `model` may be missing, and nothing loads it.

        Raises:
            RecipeError: a section is missing.
        """
        sections = dict(recipe)
        if served and recipe.model is None:
            sections["model"] = ModelSettings(path=f"(behind the engine {recipe.engine.use})")
        for section in ("train", "model"):
            if sections[section] is None:
                raise RecipeError(f"the recipe has no section {section!r}", remedy="training needs 'model' and 'train'")
        whole = cls.model_construct(recipe.model_fields_set, **sections)
        whole._base, whole._bases, whole._profile = recipe.base, recipe.bases, recipe.profile
        whole._places = recipe._places
        return whole


def _as_written(section: Any) -> Any:
    """A section object as the keys that it was given."""
    return section.model_dump(exclude_unset=True) if isinstance(section, Section) else section


def _inheriting(stage: Any, train: Any) -> Any:
    """A stage as written, with missing keys of its `train` taken from the recipe's `train`."""
    if not isinstance(stage, dict) or not isinstance(train, dict):
        return stage
    for kind in KINDS:
        own = {} if kind == "rl" and kind in stage and stage[kind] is None else stage.get(kind)
        if isinstance(own, dict) and isinstance(own.get("train", {}), dict):
            keys = TrainSection.model_fields if kind == "rl" else OptimiserSettings.model_fields
            inherited = {key: item for key, item in train.items() if key in keys}
            return {**stage, kind: {**own, "train": {**inherited, **own.get("train", {})}}}
        if isinstance(own, str):  # the short form of sft
            return _inheriting({**stage, kind: SftStage.spelled_out(own)}, train)
    return stage


def _nth(index: int) -> str:
    return ("first", "second", "third")[index] if index < 3 else f"{index + 1}th"


def recipe_from_run(info: dict[str, Any]) -> Recipe:
    """The resolved recipe stored in `run.json`.

    Raises:
        StoreError: it lacks the recipe, or the folder that the recipe's paths are relative to.
    """
    if missing := [name for name in ("recipe", "base") if name not in info]:
        raise StoreError(
            f"has no {' and no '.join(missing)}",
            place="run.json",
            remedy="use a run that agentrl rollout or train wrote",
        )
    recipe = Recipe.model_validate(info["recipe"])
    recipe._base, recipe._bases = Path(info["base"]), tuple(map(Path, info.get("bases", ())))
    recipe._profile = info.get("profile")
    return recipe
