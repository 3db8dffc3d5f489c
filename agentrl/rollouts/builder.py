"""Builds the parts of a recipe that the episodes of a run share.

`agentrl recipe check` builds the same parts, so errors are found before the first episode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from agentrl.chat.formats.registry import AUTO, parser_of
from agentrl.chat.proof import check
from agentrl.chat.recognise import TOOL, parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.template import template_text
from agentrl.chat.tokenizer import ByteTokenizer, Tokenizer
from agentrl.config.agent import SamplingSettings
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import Recipe
from agentrl.curriculum.curriculum import load_parts
from agentrl.curriculum.parts import Part
from agentrl.curriculum.task_source import TaskSource, load_tasks
from agentrl.curriculum.task_sources import TOOLS_OF
from agentrl.engines.registry import chosen_engine
from agentrl.engines.scripted import Script, ScriptedEngine
from agentrl.estimators.registry import CreditAssigner, load_credit
from agentrl.registry.installed import is_foreign
from agentrl.rewards.components import RewardSet
from agentrl.rollouts.agent import AGENTS, Agent
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.conversation.policies import EpisodePolicies
from agentrl.rollouts.hindsight import HindsightScorer, hindsight_of
from agentrl.rollouts.information_gain import AnswerScorer, scorer_of
from agentrl.rollouts.policy_models import model_of
from agentrl.rollouts.scripts import load_scripts
from agentrl.rollouts.states.registry import StateRule, check_sandbox
from agentrl.sandbox.pool import Pool
from agentrl.sandbox.registry import BACKENDS
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.tools.base import Tool
from agentrl.tools.registry import TOOLS
from agentrl.tools.toolset import ToolEntry, ToolSet
from agentrl.types.engine import Engine, Sampling
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.parts.intake import Images
from agentrl.types.sandbox import Backend
from agentrl.types.task import Message, Task

_log = logging.getLogger(__name__)

PROMPTS = 32
"""Number of tasks whose prompts are checked before the first episode."""
SHOWN = 4096
"""Maximum of cached tasks with their images as parts; the oldest are dropped first."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of a recipe, without the engine.

    Attributes:
        tools: tools of all tasks.
        credit: gives each turn its credit.
        needs_sandbox: whether the agent, a tool or a reward needs the episode's sandbox.
        scripts: scripted policies by name.
        own_tools: whether the agents are programs with their own tools.
        states: decides which state a turn has.
    """

    recipe: Recipe
    tools: ToolSet
    make_agent: Callable[[], Agent]
    rewards: RewardSet
    credit: CreditAssigner
    needs_sandbox: bool
    scripts: Mapping[str, Script]
    own_tools: bool = False
    states: StateRule = field(default_factory=StateRule)
    _shown: dict[int, tuple[Task, Task]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def tasks(self) -> TaskSource:
        """Tasks of the recipe, loaded on first use.

        Raises:
            TaskError, RecipeError: see `load_tasks`.
        """
        return load_tasks(self.recipe.tasks, self.recipe.base, self.recipe.seed)

    @cached_property
    def eval_tasks(self) -> TaskSource:
        """Tasks of evaluations: those of `eval.tasks`, by default `tasks`."""
        settings = self.recipe.eval
        if settings is None or settings.tasks is None:
            return self.tasks
        return load_tasks(settings.tasks, self.recipe.base, self.recipe.seed)

    @cached_property
    def models(self) -> dict[str, ModelSettings | None]:
        """Models of the auxiliary policies by name, found on first use; None for those that have none of their own.

        Raises:
            RecipeError: a checkpoint is missing.
        """
        return {name: model_of(name, each, self.recipe.model) for name, each in self.recipe.policies.items()}

    def make_curriculum(self) -> list[Part]:
        """Makes new parts of the curriculum, in the order of the recipe. They have state.

        Raises:
            RecipeError: see `load_parts`.
        """
        return load_parts(self.recipe.curriculum, self.recipe.base, self.recipe.scripts)

    def make_tools(self) -> list[Tool]:
        """Makes an instance of each tool, not opened."""
        return self.tools.make()

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Tool definitions for the chat template, of the tools that are known before any is opened."""
        return self.tools.definitions

    def renderer(self, tokenizer: Tokenizer) -> Renderer:
        """Makes the renderer of this recipe's conversations under a tokenizer, and checks its template."""
        # Some tools are known only when an episode has opened. A stand-in represents them in the proof.
        definitions = self.definitions or ([TOOL] if self.tools.late or self.own_tools else [])
        parser = parser_for(self.recipe.agent.format, tokenizer, definitions, self.recipe.base)
        agent = self.recipe.agent
        renderer = Renderer(
            tokenizer,
            parser,
            definitions,
            describe=agent.describe_tools,
            history=agent.replies,
            last_images=agent.last_images,
        )
        check(renderer)
        renderer.check_stops(self.recipe.sampling.stop)
        for note in renderer.notes:
            _note_once(f"{tokenizer.name}: {note}")
        return renderer if definitions is self.definitions else renderer.for_tools(self.definitions)

    def shown(self, task: Task) -> Task:
        """Returns a task with its images as parts. They are read once, and checked against the limits.

        Raises:
            ImageRefused: one is not an image, cannot be read, or is too large.
        """
        # By identity: the tasks of an evaluation may have the same ids. The cached task keeps its id() valid.
        if id(task) not in self._shown:
            if len(self._shown) >= SHOWN:
                del self._shown[next(iter(self._shown))]
            self._shown[id(task)] = task, task.with_images(Images(None, self.recipe.limits).take)
        return self._shown[id(task)][1]

    def opening(self, task: Task) -> list[Message]:
        """Returns the opening messages of an episode, its images as parts. A user-defined agent may open it with
        others.
        """
        task = self.shown(task)
        system = self.recipe.agent.system
        return [*([{"role": "system", "content": system}] if system else []), *task.instruction]

    def check_prompts(self, renderer: Renderer, tasks: Sequence[Task], max_context: int) -> None:
        """Checks that the prompt of at least one of the first `PROMPTS` tasks leaves room for a reply.

        Raises:
            RecipeError: no prompt does.
        """
        if is_foreign(self.recipe.agent.use, "agents") or self.own_tools:
            return
        lengths = []
        for task in tasks[:PROMPTS]:
            shown = renderer if task.tools is None else renderer.for_tools(self.tools.check(task))
            opening = self.opening(task)
            if not opening:  # the environment makes the whole opening, and does not run yet
                return
            lengths.append(len(shown.start(opening)))
            if lengths[-1] < max_context:
                return
        if lengths:
            raise RecipeError(
                f"no prompt of the first {len(lengths)} tasks leaves room for a reply: the shortest has {min(lengths)} "
                f"tokens, and the context {max_context}",
                place="tasks",
                remedy="shorter instructions, agent.system or tool descriptions; a model, or model.template, with room "
                "for them",
            )

    def open_backend(self) -> Backend | None:
        """Opens the sandbox backend and checks it against the spec. None if no tool or reward needs a sandbox."""
        if not (self.needs_sandbox or self.rewards.needs_fresh_sandbox):
            return None
        settings = self.recipe.sandbox
        backend: Backend = BACKENDS.chosen(settings, self.recipe.base).make()
        backend.preflight(settings.spec)
        if not settings.pool:
            return backend
        # An episode holds a sandbox, and one for each of its forks: waiting for those must not block it.
        forks = 0 if self.own_tools else self.make_agent().forks
        most = self.recipe.concurrency * (1 + forks) * (1 + self.rewards.fresh_sandboxes) + settings.pool
        return Pool(backend, ahead=settings.pool, cap=most)

    def context(
        self,
        engine: Engine,
        renderer: Renderer,
        backend: Backend | None,
        speakers: EpisodePolicies | None = None,
        *,
        temperature: float | None = None,
    ) -> RolloutContext:
        """Makes the context of episodes with an engine, for runners.

        Args:
            backend: sandbox backend; None if other processes run the episodes.
            speakers: open auxiliary policies; None: none.
            temperature: overrides the recipe's sampling temperature (evaluation).
        """
        recipe = self.recipe
        sampling = recipe.sampling
        if temperature is not None:
            sampling = sampling.model_copy(update={"temperature": temperature})
        return RolloutContext(
            engine=engine,
            renderer=renderer,
            tools=self.tools,
            make_agent=self.make_agent,
            rewards=self.rewards,
            sampling=self.sampling(renderer, sampling),
            limits=recipe.limits,
            max_turns=recipe.agent.max_turns,
            seed=recipe.seed,
            system=recipe.agent.system,
            backend=backend,
            specs=TaskSpecs(recipe.sandbox.spec),
            agent_needs_sandbox=recipe.agent.needs_sandbox,
            states=self.states if self.states.signature is not None or reads_states(self.credit) else None,
            answer_scorer=self.answer_scorer if engine.trainable else None,
            hindsight=self.hindsight if engine.trainable else None,
            speakers=speakers or EpisodePolicies(),
        )

    def sampling(self, renderer: Renderer, settings: SamplingSettings) -> Sampling:
        """Returns the sampling parameters of replies for a renderer."""
        return Sampling(
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=settings.max_tokens,
            stop=(*settings.stop, *renderer.parser.stops()),
        )

    @property
    def answer_scorer(self) -> AnswerScorer | None:
        """Scorer of gold answers; None if neither the recipe nor its credit estimator needs it."""
        return scorer_of(self.recipe.information_gain, self.credit)

    @property
    def hindsight(self) -> HindsightScorer | None:
        """Scorer of turns in hindsight; None if neither the recipe nor its credit estimator needs it."""
        return hindsight_of(self.recipe.hindsight, self.credit)

    def check_script(self, name: str) -> None:
        """Checks that a script exists. Those that the recipe names are checked with it.

        Raises:
            RecipeError: it does not.
        """
        if name not in self.scripts:
            raise RecipeError(
                f"the recipe {self.recipe.name!r} has no script {name!r}",
                place="scripts",
                remedy=nearest(name, self.scripts, "it has"),
            )

    def scripted_engine(self, name: str, tokenizer: Tokenizer | None = None) -> tuple[ScriptedEngine, Renderer]:
        """Makes an engine that runs a script. Tokens are bytes unless a tokenizer is given."""
        renderer = self.renderer(tokenizer or ByteTokenizer())
        return ScriptedEngine(self.scripts[name], renderer, renderer.parser, name), renderer


@cache  # each note once per process
def _note_once(line: str) -> None:
    _log.info(line)


def build(recipe: Recipe, *, own_tools: bool = False) -> Parts:
    """Imports, constructs and checks the plug-ins that the recipe names.

    Args:
        own_tools: the agents are programs that agentrl does not start, with their own tools.

    Raises:
        RecipeError: an unknown name, a wrong setting, or two tools of one name.
    """
    tools = _tool_set(recipe)
    rewards = RewardSet.from_recipe(
        {name: settings.spec for name, settings in recipe.rewards.items()},
        recipe.base,
        recipe.gate,
        recipe.reward_of,
        recipe.success,
    )
    parts = Parts(
        recipe=recipe,
        tools=tools,
        make_agent=AGENTS.chosen(recipe.agent, recipe.base).make,
        rewards=rewards,
        credit=load_credit(recipe.credit, recipe.base),
        needs_sandbox=recipe.agent.needs_sandbox
        or rewards.needs_sandbox
        or any(entry.needs_sandbox for entry in tools.entries),
        scripts=load_scripts(recipe.scripts, recipe.base),
        own_tools=own_tools or recipe.agent.is_program,
        states=StateRule.of(recipe.agent, recipe.base),
    )
    check_sandbox(recipe.agent, parts.needs_sandbox)
    _check_env(rewards, tools)
    _check_sources(parts)
    if not parts.own_tools:
        _check_forks(parts)
    if recipe.agent.format.use != AUTO:
        parser_of(recipe.agent.format, tools.definitions, recipe.base)
    BACKENDS.chosen(recipe.sandbox, recipe.base)
    engine = chosen_engine(recipe)
    engine.plug_in.check(engine.settings, recipe)
    if recipe.model is not None and recipe.model.template is not None:
        template_text(recipe.model.template)
    return parts


def _tool_set(recipe: Recipe) -> ToolSet:
    chosen = [TOOLS.chosen(entry, recipe.base, f"tools.{index}") for index, entry in enumerate(recipe.tools)]
    return ToolSet(tuple(ToolEntry.of(each.name, each.make) for each in chosen))


def _check_env(rewards: RewardSet, tools: ToolSet) -> None:
    """Checks that the recipe has an environment if a reward needs one.

    Raises:
        RecipeError: no tool is an environment.
    """
    asks = next((component for component in rewards.components if component.live_need == "env"), None)
    if asks is not None and not any(entry.environment for entry in tools.entries):
        raise RecipeError(
            f"reward {asks.name!r} takes 'env', and no tool of the recipe is an Environment",
            place=f"rewards.{asks.name}",
            remedy="derive the tool from agentrl.Environment, or take 'tools'",
        )


def _check_sources(parts: Parts) -> None:
    """Checks that the recipe has the tool that prepares the tasks of its source.

    Raises:
        RecipeError: it does not. Every episode would start without the task's files, and get a reward of 0.
    """
    recipe = parts.recipe
    for tasks in (recipe.tasks, recipe.eval.tasks if recipe.eval is not None else None):
        name = TOOLS_OF.get(tasks.source or "") if tasks is not None else None
        if tasks is None or name is None:
            continue
        wanted = TOOLS.find(name)
        if not any(isinstance(each, wanted) for each in parts.make_tools()):  # type: ignore[arg-type]
            given = ", ".join(each.name for each in parts.tools.entries)
            raise RecipeError(
                f"tasks of the source {tasks.source} need the tool {name}, which puts their files into the sandbox",
                place="tools",
                remedy=f"tools: [{', '.join(filter(None, [name, given]))}]",
            )


def _check_forks(parts: Parts) -> None:
    """Checks that an agent that forks its episodes can do so.

    Raises:
        RecipeError: a tool cannot be forked, or the agent brings its own tools.
    """
    agent = parts.make_agent()
    if not agent.forks:
        return
    name = type(agent).__name__
    for index, each in enumerate(parts.make_tools()):
        if not each.forkable:
            raise RecipeError(
                f"{name} forks its episodes, and {type(each).__name__} cannot be forked (forkable = False)",
                place=f"tools.{index}",
                remedy="leave the tool out, or choose another agent",
            )
    if own := agent.tools():
        raise RecipeError(
            f"{name} forks its episodes, and brings {type(own[0]).__name__}, which a fork cannot have",
            place="agent",
            remedy="name the tool under 'tools' of the recipe",
        )


def reads_states(credit: CreditAssigner) -> bool:
    """Returns True if credit reads the states of turns. A user-defined function without `needs` may read everything."""
    return "state" in credit.needs or (credit.estimator.source == "user code" and not credit.estimator.needs)
