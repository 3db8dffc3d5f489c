"""Thoughts that a corrector refines at every step: actions are reinforced, corrected thoughts are imitated."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from pydantic import Field

from agentrl import Message, Say, Session, Task
from agentrl.agents.recent import RecentAgent
from agentrl.config.sections import Section
from agentrl.curriculum.parts import Correction, CreditedEpisode, CurriculumContext, Filter, Group
from agentrl.registry.references import load_object
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.types.episode import Turn
from agentrl.types.parts.content import text_of

BABYAI = Path(__file__).parents[2] / "babyai"
guide = load_object("./task.py:guide", BABYAI)
stroller = load_object("./task.py:stroller", BABYAI)

ASK = (
    "An agent sees:\n{seen}\n\nIt thinks: {thought}\nIt does: {action}\n\nIf the thought fits what it sees and leads "
    "to a good action, reply OK. Otherwise reply with the thought that it should have, alone."
)
GOOD = "OK"


class Corrected(RecentAgent):
    """`recent_agent`, whose every thought the policy `corrector` judges. `info` has the corrected replies by turn."""

    async def run(self, session: Session) -> None:
        """Runs the loop of `recent_agent`."""
        self._session = session
        session.info["corrections"] = {}
        await super().run(session)

    async def take_turn(self, conversation: Conversation, begin: str = "") -> None:
        """Takes a turn, then has its thought corrected."""
        seen = text_of(conversation.messages[-1]["content"])
        await super().take_turn(conversation, begin)
        turn = conversation.turns[-1]
        thought, action = parted(turn.text)
        asked = [{"role": "user", "content": ASK.format(seen=seen, thought=thought or "nothing", action=action)}]
        name = f"corrector-{len(conversation.turns)}"
        said = (await self._session.context(name, asked, policy="corrector", tools=[]).generate()).text.strip()
        if said and said != GOOD:
            self._session.info["corrections"][str(turn.index)] = f"<think>{said}</think>{action}"


def parted(text: str) -> tuple[str, str]:
    """Thought and action of a reply."""
    found = re.fullmatch(r"\s*<think>(.*?)</think>(.*)", text, re.DOTALL)
    return (found[1].strip(), found[2].strip()) if found else ("", text.strip())


class CloningSettings(Section):
    """Settings of `ThoughtCloning`.

    Attributes:
        lr: of the supervised step on corrected replies.
        batch: corrected replies of a step, drawn from those so far.
        buffer: corrected replies that are kept, the newest ones.
    """

    lr: float = Field(1e-5, gt=0)
    batch: int = Field(64, gt=0)
    buffer: int = Field(4096, gt=0)


class ThoughtCloning(Filter):
    """The tokens of thoughts get no credit; a supervised step after each update imitates corrected replies (DAgger)."""

    Settings = CloningSettings
    source = "GTR, arXiv:2503.08525"
    certainty = "C"

    def refine(self, credited: list[CreditedEpisode], context: CurriculumContext) -> list[CreditedEpisode]:
        return [replace(each, credit=_of_actions(each)) for each in credited]

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        known = self.state.setdefault("corrected", [])
        for episode in (episode for group in groups for episode in group.episodes):
            known += [[episode.id, int(turn)] for turn in episode.info.get("corrections", {})]
        del known[: -self.settings.buffer]

    def correct(self, context: CurriculumContext) -> tuple[float, list[Correction]] | None:
        known = self.state.get("corrected", [])
        drawn = context.rng.sample(known, min(self.settings.batch, len(known)))
        episodes = {id: context.episode(id) for id, _ in drawn}
        texts = [episodes[id].info["corrections"][str(turn)] for id, turn in drawn]
        return self.settings.lr, [
            Correction(episodes[id], turn, text) for (id, turn), text in zip(drawn, texts, strict=True)
        ]


def _of_actions(each: CreditedEpisode) -> msgspec.Struct:
    """The credit of an episode without that of the tokens of its thoughts: a share of each reply, by characters."""
    episode, credit, tokens = each.episode, each.credit, []
    for turn in episode.sampled_turns:
        count = len(episode.nodes[turn.node].token_ids)
        quiet = math.ceil(_share(turn) * count)
        tokens += [0.0] * quiet + [credit.turn_advantages[turn.index]] * (count - quiet)
    return msgspec.structs.replace(credit, token_advantages=tokens)


def _share(turn: Turn) -> float:
    before, end, _ = turn.text.partition("</think>")
    return len(before + end) / len(turn.text) if end else 0.0


# --- scripts --------------------------------------------------------------------------------------------------------

COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")


def thinker(task: Task, rng: random.Random) -> Iterator[Say]:
    """The stroller of recipes/babyai, which thinks of any colour before each move."""
    for said in stroller(task, rng):
        yield Say(f"<think>{rng.choice(COLOURS)}</think>{said.text}")


def wise(task: Task, rng: random.Random) -> Iterator[Say]:
    """The guide of recipes/babyai, which thinks of any colour before each move."""
    for said in guide(task, rng):
        yield Say(f"<think>{rng.choice(COLOURS)}</think>{said.text}")


def corrector(task: Task, rng: random.Random, messages: list[Message]) -> Iterator[Say]:
    """Wants the thought to be the first colour that is seen."""
    seen, _, thought = str(messages[-1]["content"]).partition("It thinks: ")
    colour = next(iter(re.findall("|".join(COLOURS), seen)), "none")
    yield Say(GOOD if thought.split("\n")[0] == colour else colour)
