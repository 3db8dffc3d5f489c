"""Methods of search agents that read pages, plan, hold a chat, or search long: what they do, and what is rewarded."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentrl.api.rollout import rollout
from agentrl.config.recipe import Recipe
from agentrl.engines.scripted import Say
from agentrl.integrations.accepted import tasks as accepted
from agentrl.rollouts.builder import build
from agentrl.types.episode import Episode
from agentrl.types.paths import data_path
from agentrl.types.task import Task
from tests.methods.proofs import Method, Run
from tests.methods.search import (
    HUES,
    KIN,
    MODELS,
    PAGES,
    SMALL_TASKS,
    Asking,
    Script,
    component,
    episodes,
    hue_of,
    of_turns,
    pages,
    rounded,
    said,
    sized,
    small,
)
from tests.tools.builtin.search.test_engines import serving

__all__ = ["METHODS", "pages", "small"]  # overrides name the last two in this module

HERE = "tests.methods.deep_search"

# --- DeepResearcher ---


def reads(task: Task, rng: random.Random, context: str) -> Script:
    """Searches, has the first page read, and guesses; the reader notes a hue, and reads on half of the time."""
    if context != "main":
        yield Say(rng.choice(HUES) + rng.choice([" MORE", ""]))
        return
    url = re.search(r"\[(http.*?)\]", (yield Say(calls=[("search", {"query": task.id})]))[-1]["content"])
    yield Say(calls=[("read", {"url": url[1] if url else "", "question": "hue"})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


def reads_on(task: Task, rng: random.Random, context: str) -> Script:
    """Plays as `reads` does; the reader reads two parts, and the answer has three words, one of them right."""
    if context != "main":
        yield Say("It is blue. MORE" if context.endswith(".1") else "It is not red.")
        return
    (hits,) = yield Say(calls=[("search", {"query": task.id})])
    url = re.findall(r"http[^\]\s]+", hits["content"])[0]
    yield Say(calls=[("read", {"url": url, "question": "hue"})])
    yield Say(calls=[("answer", {"text": f"{task.data['answer'][0]} or so"})])


def site(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """A search of the web with one hit, and the page that it finds."""
    if path == "/search":
        return 200, {"results": [{"url": f"http://{headers['Host']}/p", "title": "A page", "content": "of names"}]}
    return (
        200,
        b"<html><title>A page</title><body><p>All names that are first are blue, and all others are red.</p></body>",
    )


def researched(recipe: Recipe) -> list[Any]:
    """Contexts of the turns, what a reader brings back, and the outcome."""
    if recipe.agent.use != "reading_agent":
        return []
    with serving(site) as (url, _):
        web = (f"tools.0.url={url}", f"agent.http={{allow: ['{url.removeprefix('http://')}'], chars: 30}}")
        (each,) = episodes(recipe, f"{HERE}:reads_on", *web, n=1)
    brought = each.turns[-2].calls or next(t for t in each.turns if t.calls and t.calls[0].name == "read").calls
    return [sorted(turn.context for turn in each.turns), brought[0].result.split("\n")[1:], rounded(each.reward)]


# --- AI-SearchPlanner ---


def plans(task: Task, rng: random.Random) -> Script:
    """Searches for the name or another one, and stops."""
    yield Say(calls=[("search", {"query": rng.choice([task.id, "mi"])})])
    yield Say("done")


def answers(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """Plays the frozen answerer, who reads the hue of the first hit, and the judge, who thinks little of the plan."""
    if path.endswith("/models"):
        return MODELS
    text = asked["messages"][-1]["content"]
    if "score" in text:
        return said('{"score": 4}')
    hue = re.search(r"hue (red|blue)", text)
    return said(hue[1] if hue else "unknown")


def planned(recipe: Recipe) -> list[Any]:
    """Returns the answers of the frozen model without and with the planner, and the outcome."""
    with serving(answers) as (url, _):
        served = (f"policies.answerer.engine.urls=['{url}']",)
        if "plan" in recipe.rewards:
            served += (f"rewards.plan.judge.url={url}",)
        found = episodes(recipe, f"{HERE}:plans_once", PAGES, "tools.0.k=1", *served)
    return [(each.info["answer_without_search"], each.answer, rounded(each.reward)) for each in found]


def plans_once(task: Task, rng: random.Random) -> Script:
    """Searches for the name of the first question, and nothing for the second."""
    if task.id == "bo":
        yield Say(calls=[("search", {"query": "bo"})])
    yield Say("done")


# --- FAQ chats ---


def chats() -> Iterator[Task]:
    """Chats about a name: its hue, and its kin, which the same entry tells."""
    for name in ("bo", "du", "ka", "mi"):
        queries = [f"hue of {name}?", "kin?", f"hue of {KIN[name]}?"]
        yield Task.of(name, queries[0], queries=queries, answers=[hue_of(name), KIN[name], hue_of(KIN[name])])


def fetches(task: Task, rng: random.Random) -> Script:
    """Fetches or not."""
    for _ in task.data["queries"]:
        yield Say(rng.choice(["FETCH", "SKIP"]))


def fetches_once(task: Task, rng: random.Random) -> Script:
    """Fetches for the first message only."""
    for action in ("FETCH", "SKIP", "SKIP"):
        yield Say(action)


def chatbot(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """Plays the chatbot, who says what the FAQ says, and the judge, who looks for the right answer in that."""
    if path.endswith("/models"):
        return MODELS
    text = asked["messages"][0]["content"]
    if not text.startswith("Rate"):
        return said(text.partition("\n\n")[2] or "I do not know")
    right, reply = (re.search(rf"{key}: (.*)", text) for key in ("The right answer is", "Reply"))
    return said("Good" if right and reply and right[1] in reply[1] else "Bad")


CHATS = (f"tasks={{source: '{HERE}:chats', args: {{}}}}", f"agent.corpus={HERE}:pages", "agent.k=1")
SERVED = ("policies.bot.engine.urls=['URL']", "policies.judge.engine.urls=['URL']")


def decided(recipe: Recipe) -> list[Any]:
    """The rewards of the policy's turns: a search that was needed, one that was saved, and one that was missing."""
    with serving(chatbot) as (url, _):
        served = [each.replace("URL", url) for each in SERVED]
        (each,) = episodes(recipe, f"{HERE}:fetches_once", *CHATS, *served, n=1)
    return [rounded(turn.reward) for turn in each.own_turns]


# --- WebExplorer, ASearcher ---

SYNTHESIS = data_path("recipes", "methods") / "webexplorer" / "synthesis.yaml"
MADE_UP = "tasks={source: accepted, args: {run: 'RUN'}, jsonl: null, prompt: null, id: null}"
JSONL_OFF = f"tasks={{source: '{HERE}:small', args: {{}}, jsonl: null, prompt: null, id: null}}"


@dataclass(frozen=True)
class Synthesised(Method):
    """A method whose tasks are made up before the training: `RUN` in its sizes is the run that made them up."""

    def play(self, folder: Path, profile: str | None = None) -> Run:
        """Makes up questions, then trains on those that were accepted."""
        made = folder.parent / f"{folder.name}-made"
        synthesised("makes_up", made)
        sizes = tuple(each.replace("RUN", str(made)) for each in self.sized)
        own = {each.name: getattr(self, each.name) for each in fields(Method)}
        return Method(**{**own, "sized": sizes}).play(folder, profile)


def synthesised(script: str, out: Path) -> list[Episode]:
    """Returns episodes in which a script makes up questions about the small pages."""
    named = f"scripts.plays={HERE}:{script}"
    with serving(knows_little) as (url, _):
        asked = [named, SMALL_TASKS, PAGES, f"policies.solver.engine.urls=['{url}']"]
        run = rollout(SYNTHESIS, 4, script="plays", overrides=asked, out=out, reporters=())
    return sorted(run.dir.episodes(), key=lambda each: each.id)


def knows_little(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """Plays the solver, who knows the hue of mi alone."""
    if path.endswith("/models"):
        return MODELS
    return said("red" if "of mi" in asked["messages"][-1]["content"] else "I do not know")


def makes_up(task: Task, rng: random.Random) -> Script:
    """Explores, and asks for the hue in ever fewer words."""
    yield Say(calls=[("search", {"query": task.id})])
    for question in (f"{task.id} and its hue?", f"{task.id} hue?", f"{task.id}?"):
        yield Say(calls=[("propose", {"question": question, "answer": hue_of(task.id)})])


def makes_mistakes(task: Task, rng: random.Random) -> Script:
    """As `makes_up`; three of the four questions are bad in the end."""
    last = {
        "bo": ("hue of the first?", "blue"), "du": ("hue of du?", "green"), "ka": ("is ka red?", "red"),
        "mi": ("hue of mi?", "red"),
    }[task.id]  # fmt: skip
    yield Say(calls=[("search", {"query": task.id})])
    for question, answer in (("hue?", hue_of(task.id)), ("hue of it?", hue_of(task.id)), last):
        yield Say(calls=[("propose", {"question": question, "answer": answer})])


def made_up(recipe: Recipe) -> list[Any]:
    """Why questions are rejected, the tasks that become of the others, and the questions and turns of the recipe."""
    with TemporaryDirectory() as folder:
        found = [each.info["rejected"] for each in synthesised("makes_mistakes", Path(folder, "run"))]
        tasks = [task.instruction[0]["content"] for task in accepted(f"{folder}/run", Path())]
    return [found, tasks, "made_by" in build(recipe).tasks.tasks[0].data, recipe.agent.max_turns]


def goes_on(task: Task, rng: random.Random) -> Script:
    """Searches twelve times, and gives the right answer."""
    for _ in range(12):
        yield Say(calls=[("search", {"query": task.id})])
    yield Say(calls=[("answer", {"text": task.data["answer"][0]})])


def long_episode(recipe: Recipe) -> list[Any]:
    """The turns and the outcome of an episode of more than ten turns; the staleness that training allows."""
    (each,) = episodes(recipe, f"{HERE}:goes_on", JSONL_OFF, PAGES, "tools.0.k=1", n=1)
    return [len(each.turns), each.reward, recipe.train.max_staleness if recipe.train else None]


METHODS: Sequence[Method] = [
    Asking(
        "deepresearcher",
        lambda run: [[turn.context for turn in each.turns if turn.agent == "reader"] for each in run.played],
        researched,
        # One of three words is right: F1 0.5.
        [["main", "main", "main", "reader-1.1", "reader-1.2"], ["It is blue.", "It is not red."], 0.5],
        sized=sized(
            f"{HERE}:reads", "tools.0.url=URL", "agent.http={allow: ['HOST'], chars: 30}", "sampling.max_tokens=80"
        ),
        warmed=None,
        answer=site,
    ),
    Asking(
        "search-planner",
        component("gain"),
        planned,
        # Right, and unknown before: F1 1 - 0; half of the judge's 0.4; 2 of 6 turns and 1 of 6 queries cost 0.1 of
        # their mean, 0.25. Without a search: no gain, 0.2, and 1 of 6 turns.
        [("unknown", "blue", 1.175), ("unknown", "unknown", 0.192)],
        sized=sized(
            f"{HERE}:plans", PAGES, "tools.0.k=1", "policies.answerer.engine.urls=['URL']", "rewards.plan.judge.url=URL"
        ),
        warmed=None,
        answer=answers,
    ),
    Asking(
        "faq-rag",
        of_turns("saved"),
        decided,
        # Good: 1. Good and saved: 1 + 0.5. The entry of another name: -1.
        [1.0, 1.5, -1.0],
        sized=sized(f"{HERE}:fetches", *CHATS, *SERVED, "agent.max_turns=9"),
        warmed=None,
        answer=chatbot,
    ),
    Synthesised(
        "webexplorer",
        lambda run: [each.task.data.get("made_by") for each in run.played],
        made_up,
        # Of du no tool showed the answer; ka's question holds it; the solver knows mi's.
        [
            ["", "no tool showed the answer", "the question holds the answer", "a model answers it without a search"],
            ["hue of the first?"],
            True,
            100,
        ],
        sized=sized("guesses", MADE_UP, PAGES, "tools.0.k=1"),
        warmed=None,
    ),
    Synthesised(
        "asearcher",
        lambda run: run.metric("staleness_mean"),
        long_episode,
        [13, 1.0, 4],
        sized=sized("guesses", MADE_UP, PAGES, "tools.0.k=1", "curriculum.0.rounds=2"),
        warmed=None,
    ),
]
