"""The training data of a supervised or preference stage, from any source."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from agentrl.chat.formats.parser import Parser
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.recipe import RlStage
from agentrl.config.stages import PreferenceStage, SftStage
from agentrl.curriculum.tables import RowSource
from agentrl.estimators.pairs import best_and_worst, best_two_and_worst, check_prompts
from agentrl.estimators.registry import CreditAssigner, load_credit
from agentrl.models.load import chat_tokenizer, find_model
from agentrl.rollouts.builder import Parts
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.training.backend import COLUMNS
from agentrl.training.losses.loss import Loss, PreferenceLoss
from agentrl.training.losses.registry import load_loss
from agentrl.training.stages.files import conversations, preferences, raw_texts
from agentrl.training.stages.runs import Stored, samples_of
from agentrl.training.stages.stage import Stage
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.training.supervised.raw_text import RawText
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, RecipeError, RenderError, TrainError
from agentrl.types.figures.of_episodes import earned
from agentrl.types.figures.sums import reaches
from agentrl.types.sample import TrainingSample, with_advantages


@dataclass(frozen=True)
class Example:
    """A conversation or a raw text to train on, with advantage 1, with advantages or with a label.

    Attributes:
        episode: the recorded episode; None for a conversation or a text from a file.
        label: 1 for a good conversation, 0 for a bad one.
        advantages: of a recorded episode, one per turn; None: all are 1.
    """

    conversation: SupervisedConversation | RawText
    episode: Episode | None = None
    label: float = 0.0
    advantages: Sequence[float] | None = None

    @classmethod
    def of(cls, episode: Episode, label: float = 0.0) -> Example:
        """A stored episode."""
        return cls(SupervisedConversation.of(episode), episode, label)

    def samples(self, renderer: Renderer, max_context: int) -> list[TrainingSample]:
        """The training samples under the renderer's tokenizer. Raw texts are cut to the context.

        Raises:
            RenderError: the chat template refuses the conversation.
        """
        try:
            if self.episode is not None:
                found = samples_of(self.episode, renderer, self.label)
                return found if self.advantages is None else with_advantages(found, self.advantages)
            if isinstance(self.conversation, RawText):
                return self.conversation.samples(renderer.tokenizer, max_context)
            return self.conversation.samples(renderer, self.label)
        except RenderError as error:
            raise RenderError(error.message, place=self.conversation.place, remedy=error.remedy) from None


@contextmanager
def stored_for(stage: Stage, run: RunReader | None) -> Iterator[Stored | None]:
    """Opens the stored episodes that a stage learns from: of an earlier stage or of another run directory. None if the
    stage names neither, or names an earlier stage before the run has begun.

    Raises:
        StoreError: the run directory does not exist.
    """
    name = getattr(stage.settings, "run", None)
    if name is None:
        yield None
    elif stage.source is not None:
        yield None if run is None else Stored.of(run, stage.source)
    else:
        with RunDir.read(stage.recipe.base / name) as other:
            yield Stored.of(other)


def examples_of(
    stage: Stage, parser: Parser, stored: Stored | None, demonstrations: Sequence[Episode]
) -> list[Example]:
    """Returns the examples of a stage, in a deterministic order.

    Args:
        parser: writes the tool calls of files in the policy's format.
        stored: the episodes of `run`.
        demonstrations: the episodes of `script`.

    Raises:
        TaskError: a row of a file is wrong.
        TrainError: the stage has no examples.
    """
    settings = stage.settings
    if isinstance(settings, SftStage):
        return _supervised(stage, settings, parser, stored, demonstrations)
    if isinstance(settings, PreferenceStage):
        return _preferred(stage, settings, parser, stored)
    raise TypeError(f"a stage of kind {stage.kind} plays its episodes itself")


def _supervised(
    stage: Stage, settings: SftStage, parser: Parser, stored: Stored | None, demonstrations: Sequence[Episode]
) -> list[Example]:
    if (source := _rows(stage, settings)) is not None:
        found = conversations(source, stage.recipe.base, parser, settings.messages, settings.tools)
        return [Example(each) for each in found]
    if settings.text is not None:
        texts = raw_texts(settings.text, stage.recipe.base, settings.length, key_of(stage, "text"))
        return [Example(each) for each in texts]
    if stored is None:
        return [Example.of(episode) for episode in demonstrations]
    with _placed(stage, "run"):
        rows = stored.earning(settings.min_reward)
        episodes = stored.episodes(rows)
        chosen = [Example.of(each) for each in (episodes if settings.min_reward is None else _of_one_outcome(episodes))]
        return chosen if (credit := offline_credit(stage)) is None else _credited(chosen, credit)


def _credited(examples: Sequence[Example], credit: CreditAssigner) -> list[Example]:
    """Examples of recorded episodes with the advantages of their turns, which are compared with each other."""
    found, _ = credit.assign(each.episode for each in examples if each.episode is not None)
    return [replace(each, advantages=own.turn_advantages) for each, own in zip(examples, found, strict=True)]


def _preferred(stage: Stage, settings: PreferenceStage, parser: Parser, stored: Stored | None) -> list[Example]:
    loss = preference_loss(stage)
    if (source := _rows(stage, settings)) is not None:
        base, tools = stage.recipe.base, settings.tools
        found = preferences(source, base, parser, tools, paired=loss.paired, gold=loss.gold)
        return [Example(conversation, None, label) for conversation, label in found]
    if stored is None:
        return []
    with _placed(stage, "run"):
        return _labelled(settings, stored, loss.gold)


def _labelled(settings: PreferenceStage, stored: Stored, gold: bool) -> list[Example]:
    if (threshold := settings.threshold) is not None:
        episodes = _of_one_outcome(stored.episodes(stored.earning(None)))
        return [Example.of(episode, float(reaches(earned(episode) or 0.0, threshold))) for episode in episodes]
    found = []
    choose, labels = (best_two_and_worst, (2.0, 1.0, 0.0)) if gold else (best_and_worst, (1.0, 0.0))
    for chosen in choose(stored.rows, attrgetter("reward"), min_gap=settings.min_gap):
        members = list(_of_one_outcome(stored.episodes(chosen)))
        for other in members[1:]:
            check_prompts(members[0], other)
        found += [Example.of(each, label) for each, label in zip(members, labels, strict=True)]
    return found


def _of_one_outcome(episodes: Iterable[Episode]) -> Iterator[Episode]:
    """Passes episodes through.

    Raises:
        TrainError: the seats of an episode have separate outcomes. Selection by the winner's reward would also train
            the loser's turns.
    """
    for episode in episodes:
        if any(context.outcome is not None for context in episode.contexts.values()):
            raise seats_refused(f"episode {episode.id}")
        yield episode


def seats_refused(place: str) -> TrainError:
    """Returns the error for a stage that selects whole episodes by reward although seats have separate outcomes."""
    return TrainError(
        "the seats of an episode have outcomes of their own, and the stage chooses whole episodes by one reward: it "
        "would learn from the turns of the losers as from those of the winners",
        place=place,
        remedy="train by rl with role_grpo or mars, or store episodes in which one seat is the policy's",
    )


def offline_loss(stage: Stage) -> Loss:
    """The loss of a supervised or preference stage.

    Raises:
        RecipeError: the loss does not exist, or a setting is wrong.
    """
    settings = stage.settings
    assert not isinstance(settings, RlStage)
    if isinstance(settings, PreferenceStage):
        return preference_loss(stage)
    return load_loss(settings.loss, stage.recipe.base, key_of(stage, "loss"))[0]


def offline_credit(stage: Stage) -> CreditAssigner | None:
    """The estimator of the advantages of a supervised stage; None: they are 1.

    Raises:
        RecipeError: the estimator does not exist, a setting is wrong, or it needs what only reinforcement learning
            computes.
    """
    settings = getattr(stage.settings, "credit", None)
    if settings is None:
        return None
    credit, place = load_credit(settings, stage.recipe.base), key_of(stage, "credit")
    if computed := [need for need in credit.needs if need in COLUMNS]:
        raise RecipeError(
            f"{credit.estimator.name} needs {', '.join(computed)}, which only reinforcement learning computes",
            place=place,
            remedy="an estimator of what is recorded: returns, gigpo, gagpo, grpo",
        )
    return credit


def preference_loss(stage: Stage) -> PreferenceLoss:
    """The loss of a preference stage.

    Raises:
        RecipeError: the loss does not exist, or a setting is wrong.
    """
    settings = stage.settings
    assert isinstance(settings, PreferenceStage)
    loss, _ = load_loss(settings.loss, stage.recipe.base, key_of(stage, "loss"))
    return loss if isinstance(loss, PreferenceLoss) else PreferenceLoss(**vars(loss))


def parser_of(parts: Parts, *, fetch: bool = True) -> Parser:
    """The parser of the policy's format of tool calls. The format `auto` depends on the model's template.

    Args:
        fetch: download a model of the Hugging Face Hub that is not here; else the format is taken to be the usual one.
    """
    model = parts.recipe.model
    if model is None or model.path is None or importlib.util.find_spec("transformers") is None:
        return parts.renderer(ByteTokenizer()).parser
    if not fetch and find_model(model.path, model.revision) is None:
        return parts.renderer(ByteTokenizer()).parser
    return parts.renderer(chat_tokenizer(model)).parser


def fitting(
    examples: Sequence[Example],
    renderer: Renderer,
    max_context: int,
    note: Callable[[str], None],
    *,
    paired: bool = False,
) -> list[TrainingSample]:
    """Returns the samples of the examples with a trained reply that fit the model's context.

    Args:
        note: receives a line if examples are left out.
        paired: keep both examples of a pair, or neither.

    Raises:
        TrainError: no example fits.
    """
    longest: dict[str, int] = {}  # by unit
    every = [(_unit(each, paired), each.samples(renderer, max_context)) for each in examples]
    silent = {unit for unit, samples in every if not samples}
    made = [(unit, samples) for unit, samples in every if unit not in silent]
    if not made:
        raise TrainError("no conversation has a reply to train on", remedy="record episodes in which the policy speaks")
    for unit, samples in made:
        longest[unit] = max([longest.get(unit, 0), *(len(sample.token_ids) for sample in samples)])
    kept = [samples for unit, samples in made if longest[unit] <= max_context]
    if not kept:
        what = "pairs" if paired else "conversations"
        raise TrainError(
            f"none of {len(longest)} {what} fits the context of {max_context} tokens: the shortest has "
            f"{min(longest.values())}",
            remedy="use a model with a longer context",
        )
    if len(made) < len(every):
        why = "no reply to train on" + (", or are paired with one that has none" if paired else "")
        note(f"{len(every) - len(made)} of {len(every)} conversations have {why}: they are left out")
    if len(kept) < len(made):
        why = "longer than the context" + (", or paired with one that is" if paired else "")
        note(f"{len(made) - len(kept)} of {len(made)} conversations are {why}: they are left out")
    return [sample for samples in kept for sample in samples]


def _unit(example: Example, paired: bool) -> str:
    """Returns the id of the unit that is included or left out as a whole."""
    return example.conversation.group_id if paired else example.conversation.id


def key_of(stage: Stage, key: str) -> str:
    """The full key of a setting of a stage in the recipe."""
    return f"stages.{stage.index}.{stage.kind}.{key}" if stage.listed else f"{stage.name}.{key}"


def _rows(stage: Stage, settings: SftStage | PreferenceStage) -> RowSource | None:
    """The source of rows of a stage; None if it has another source."""
    if (kind := settings.rows) is None:
        return None
    section = key_of(stage, kind).removesuffix(f".{kind}")
    return RowSource(kind, getattr(settings, kind), section, settings.split, settings.subset, settings.revision)


@contextmanager
def _placed(stage: Stage, key: str) -> Iterator[None]:
    """Adds the stage's key to the place of errors."""
    try:
        yield
    except AgentRLError as error:
        where = key_of(stage, key)
        place = f"{where} ({error.place})" if error.place else where
        raise TrainError(error.message, place=place, remedy=error.remedy) from None
