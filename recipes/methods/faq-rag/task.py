"""A chatbot with an FAQ, and a policy that decides before each of its answers whether the FAQ is searched."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.session import Session
from agentrl.tools.builtin.search.tool import Corpus, open_index
from agentrl.types.task import Message, Task

_FICTION = "../../search-qa/fiction.py"
_world = load_object(f"{_FICTION}:world", Path(__file__).parent)
_spoken = load_object(f"{_FICTION}:RELATIONS", Path(__file__).parent)

TALK = ("Hello!", "Thank you.", "That is good to know.")
POLITE = "(any polite reply)"
KINDS = (
    ("capital", "ruler"), ("country", "founded"), ("rises", "passes"), ("born_in", "born"), ("author", "published"),
    ("founder", "seat", "makes"),
)  # fmt: skip
"""Facts that stand in one article."""

BOT = "You answer users from this FAQ, in a sentence. If it does not tell, say that you do not know.\n\n{faq}"
JUDGE = (
    "Rate the reply of a chatbot. The right answer is: {answer}\nMessage: {query}\nReply: {reply}\n"
    "Write Good or Bad, and nothing else."
)


def chats(n: int = 512, seed: int = 0, length: int = 6, **args: object) -> Iterator[Task]:
    """Chats: questions about a subject, questions that follow it up, and small talk.

    Args:
        length: messages of a chat.
        args: arguments of the base's tasks, which do not apply.
    """
    for number in range(n):
        rng = random.Random(f"{seed} {number}")
        queries, answers, fetch = zip(*_messages(rng, length), strict=True)
        yield Task.of(f"chat-{seed}-{number}", queries[0], queries=queries, answers=answers, fetch=fetch)


def _messages(rng: random.Random, length: int) -> Iterator[tuple[str, str, bool]]:
    """Messages, what is right to answer, and whether the FAQ must be searched."""
    facts, left, about = _world().facts, list[str](), ""
    for _ in range(length):
        drawn = rng.random()
        if drawn < 0.2:
            yield rng.choice(TALK), POLITE, False
        elif left and drawn < 0.7:
            yield f"And what is {_spoken[left[0]].format('it')}?", facts[left[0]][about], False
            left = left[1:]
        else:
            kinds = rng.choice(KINDS)
            about = rng.choice(sorted(facts[kinds[0]]))
            first, *left = rng.sample(kinds, len(kinds))
            yield f"What is {_spoken[first].format(about)}?", facts[first][about], True


class FaqAgent(Agent):
    """Asks the policy to write FETCH or SKIP for each message, and then has a frozen chatbot answer and a judge rate.

    A reply without SKIP fetches. Rewards of a turn: `quality`, 1 for a good answer and -1 for a bad one; `saved`, 1 for
    a good answer without a search; `words`, the length of what the chatbot was shown.

    Args:
        corpus: the FAQ, as the setting of `search`.
        k: entries that a search shows the chatbot.
        bot, judge: names of the chatbot and the judge under `policies`.
    """

    def __init__(
        self, corpus: Corpus, k: Annotated[int, Field(gt=0)] = 3, bot: str = "bot", judge: str = "judge"
    ) -> None:
        self.corpus, self.k, self.bot, self.judge = corpus, k, bot, judge

    async def run(self, session: Session) -> None:
        """Goes through the messages of the chat."""
        faq, talk, reply = "", list[Message](), ""
        pairs = zip(session.task.data["queries"], session.task.data["answers"], strict=True)
        for number, (query, answer) in enumerate(pairs):
            if number:
                session.say(query)
            skips = "SKIP" in (await session.generate()).text.upper()
            if not skips:
                faq = "\n\n".join(hit.text for hit in open_index(self.corpus).find(query, self.k))
            talk.append({"role": "user", "content": query})
            opening: list[Message] = [{"role": "system", "content": BOT.format(faq=faq)}, *talk]
            reply = await self._said(session, f"bot-{number}", opening, self.bot)
            talk.append({"role": "assistant", "content": reply})
            asked = JUDGE.format(answer=answer, query=query, reply=reply)
            rated = await self._said(session, f"judge-{number}", [{"role": "user", "content": asked}], self.judge)
            good = rated.lower().startswith("good")
            session.reward(quality=1.0 if good else -1.0, saved=float(skips and good), words=len(faq.split()))
        session.finish("answer", reply)

    async def _said(self, session: Session, name: str, messages: list[Message], policy: str) -> str:
        return (await session.context(name, messages, policy=policy).generate()).text.strip()


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Fetches for each new subject."""
    for fetch in task.data["fetch"]:
        yield Say("FETCH" if fetch else "SKIP")
