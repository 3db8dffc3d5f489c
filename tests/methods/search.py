"""Methods of search agents: what searches cost and find, who answers them, and which turn gets the credit."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from agentrl.api.rollout import rollout
from agentrl.chat.formats.registry import parser_of
from agentrl.config.recipe import Recipe
from agentrl.curriculum.parts import CurriculumContext, GroupPlan
from agentrl.engines.scripted import Say
from agentrl.rollouts.builder import build
from agentrl.types.episode import Episode
from agentrl.types.task import Message, Task
from tests.estimators.tables import Member, Step, table_of
from tests.estimators.tables import run as run_credit
from tests.methods.proofs import Method, Run
from tests.rewards.make import call, make_episode, turn
from tests.tools.builtin.search.test_engines import serving

Script = Generator[Say, list[Message], None]
HERE = "tests.methods.search"
HUES = ("red", "blue")

SMALL_TASKS = f"tasks={{source: '{HERE}:small', args: {{}}}}"

TINY = (
    "model={scratch: {hidden: 64, layers: 2, heads: 2, vocab_size: 300, max_context: 512}, device: cpu}",
    "agent.format=tags", "agent.describe_tools=false", "agent.system=null", "agent.max_turns=6",
    "sampling.max_tokens=40", SMALL_TASKS, "train.trainable=null", "train.lr=1.0e-3",
    "train.kl={coef: 1.0e-3}",
)  # fmt: skip
"""Overrides: a policy from scratch for four short questions. The reference of `kl` keeps its first checkpoint."""


def sized(script: str, *more: str) -> tuple[str, ...]:
    """Returns the sizes of a method: those of `TINY`, a warm start on a script, and others.

    Args:
        script: `MODULE:NAME`, or the name of one in this module.
    """
    return (
        *TINY,
        f"scripts={{shown: '{_placed(script)}'}}",
        "warm_start={script: shown, episodes: 32, steps: 100, batch: 4, lr: 3.0e-3}",
        *more,
    )


@dataclass(frozen=True)
class Asking(Method):
    """A method that asks a server: `URL` in its sizes is the address of one that answers as `answer`,
    `HOST` the address without a scheme."""

    answer: Callable[[str, str, dict[str, Any], Any], tuple[int, Any]] = lambda *asked: (404, {})

    def play(self, folder: Path, profile: str | None = None) -> Run:
        """Trains with the server in place."""
        own = {each.name: getattr(self, each.name) for each in fields(Method)}
        with serving(self.answer) as (url, _):
            host = url.removeprefix("http://")
            sizes = tuple(each.replace("URL", url).replace("HOST", host) for each in self.sized)
            return Method(**{**own, "sized": sizes}).play(folder, profile)


MODELS = 200, {"data": [{"id": f"Qwen/Qwen2.5-{size}B-Instruct"} for size in (7, 14, 32)]}
"""What an API says of its models."""


def said(text: str) -> tuple[int, Any]:
    """Returns the answer of an API that says this."""
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def episodes(recipe: Recipe, script: str, *overrides: str, n: int = 2) -> list[Episode]:
    """Returns episodes in which a script, named as for `sized`, plays the small tasks by the recipe."""
    named = f"scripts.plays={_placed(script)}"
    with TemporaryDirectory() as folder:
        run = rollout(
            recipe, n, script="plays", overrides=[named, SMALL_TASKS, *overrides], out=f"{folder}/run", reporters=()
        )
        return sorted(run.dir.episodes(), key=lambda each: each.id)


def scored(recipe: Recipe, *written: Episode) -> list[float | None]:
    """Returns the outcomes of episodes that are written by hand."""
    rewards = build(recipe).rewards
    return [rounded(asyncio.run(rewards.score(each.task, each)).total) for each in written]


def _placed(script: str) -> str:
    return script if ":" in script else f"{HERE}:{script}"


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def component(name: str) -> Callable[[Run], list[Any]]:
    """Returns what reads a reward component of each episode."""
    return lambda run: [each.components.get(name) for each in run.played]


def of_turns(name: str) -> Callable[[Run], list[Any]]:
    """Returns what reads a reward component of the turns of each episode."""
    return lambda run: [[turn.rewards.get(name) for turn in each.turns] for each in run.played]


def small(hops: int = 1, n: int = 4) -> Iterator[Task]:
    """Questions about the hue of a name, or of its kin, which the pages tell."""
    for name, kin in [*KIN.items()][:n]:
        chain = [name, kin][:hops]
        hue = hue_of(chain[-1])
        told = [kin, hue][-hops:]
        steps = [{"query": each, "gold": each, "expect": [expect]} for each, expect in zip(chain, told, strict=True)]
        asked = f"hue of {'kin of ' * (hops - 1)}{name}?"
        yield Task.of(name, asked, answer=[hue], gold=chain, hops=steps)


KIN = {"bo": "ka", "du": "mi", "ka": "bo", "mi": "du"}


def hue_of(name: str) -> str:
    """The hue of a name."""
    return HUES[name < "d"]


def pages() -> list[dict[str, str]]:
    """What there is to search."""
    return [{"id": name, "title": name, "text": f"kin {kin} hue {hue_of(name)}"} for name, kin in KIN.items()]


def guesses(task: Task, rng: random.Random) -> Script:
    """Makes the searches of the question, and guesses: half of the answers are right."""
    for hop in task.data["hops"]:
        yield Say(calls=[("search", {"query": hop["query"]})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


PAGES = f"tools.0.corpus={HERE}:pages"


# --- SSRL ---


def knows(task: Task, rng: random.Random, context: str) -> Script:
    """Searches, answers the search itself, and guesses."""
    if context == "main":
        yield from guesses(task, rng)
    else:
        yield Say(f"hue {rng.choice(HUES)}")


def answers_itself(task: Task, rng: random.Random, context: str) -> Script:
    """As `knows`; only the first question is answered right."""
    if context != "main":
        yield Say("It is blue.")
        return
    yield Say(calls=[("search", {"query": task.id})])
    yield Say(calls=[("answer", {"text": task.data["answer"][0] if task.id == "bo" else "green"})])


def self_answered(recipe: Recipe) -> list[Any]:
    """Contexts of the turns, the kinds of their tokens, and the outcome."""
    return [
        ([turn.context for turn in each.turns], [each.nodes[turn.node].kind for turn in each.turns], each.reward)
        for each in episodes(recipe, "answers_itself", PAGES)
    ]


def own_answers(run: Run) -> list[list[str]]:
    """By episode: what the policy wrote to its own searches."""
    return [[turn.text for turn in each.turns if turn.context != "main"] for each in run.played]


# --- ZeroSearch ---


def search_engine(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """Plays ZeroSearch's search engine: documents are useful or noisy, as the prompt says."""
    return said(f"Doc 1: {'noisy' if 'noisy documents' in asked['messages'][0]['content'] else 'useful'}")


def noises(recipe: Recipe) -> list[Any]:
    """The probability of noise at iterations 0, 1 and 2, and what searches with noise 0 and 1 show."""
    parts = build(recipe).make_curriculum()
    planned = [_noise(parts[0], at) if parts else None for at in (0, 1, 2)]
    (search,) = build(recipe).make_tools()[:1]
    if search.engine != "simulated":  # type: ignore[attr-defined]
        return planned
    tasks = f"tasks={{source: '{HERE}:clear_and_noisy', args: {{}}}}"
    with serving(search_engine) as (url, _):
        shown = [found(each) for each in episodes(recipe, "guesses", tasks, f"tools.0.url={url}")]
    return [*planned, *shown]


def _noise(part: Any, iteration: int) -> float:
    context = CurriculumContext(iteration, 2, random.Random(0), {}.__getitem__)
    group = part.plan(GroupPlan(Task.of("t", "?"), 8, 8), context)
    return round(float(group.task.data["noise"]), 4)


def clear_and_noisy() -> Iterator[Task]:
    """A question whose searches have no noise, and one with nothing else."""
    for task, noise in zip(small(n=2), (0.0, 1.0), strict=True):
        yield Task.of(task.id, "hue?", **{**task.data, "noise": noise})


def found(episode: Episode) -> str:
    """The text of the first hit of the first search."""
    return episode.turns[0].calls[0].result.partition("\n")[2]


def heard_noise(run: Run) -> list[bool]:
    """By search: whether the model that played the engine wrote noise."""
    calls = [call for each in run.played for turn in each.turns for call in turn.calls if call.name == "search"]
    return ["noisy" in call.result for call in calls if call.outcome == "ok"]


# --- Router-R1 ---


def routes(task: Task, rng: random.Random) -> Script:
    """Sends the question to one of the models, and guesses."""
    yield Say(calls=[("route", {"model": rng.choice(["small", "large"]), "question": task.id})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


def talks(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """Plays the models of Router-R1: the dear one says more."""
    return said("I do not know." if "small" in path else "It is red, or blue, as all names are.")


def routed(recipe: Recipe) -> list[Any]:
    """Right answers for 50 words of the small model and 100 of the large one, a wrong answer, and none."""
    task = next(small())
    cheap, dear = (
        turn(call("route", "word " * words, model=model, question="?"))
        for model, words in (("small", 50), ("large", 100))
    )
    ends = [((cheap,), "blue"), ((dear,), "blue"), ((cheap,), "red"), ((cheap,), None)]
    return scored(recipe, *(make_episode(task, *turns, answer=answer) for turns, answer in ends))


# --- ReSeek ---


def judges(task: Task, rng: random.Random) -> Script:
    """Searches for the name or another one, judges what it found at random, and guesses."""
    yield Say(calls=[("search", {"query": rng.choice([task.id, "mi"])})])
    yield Say(calls=[("judge", {"useful": rng.choice([True, False])})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


def judged(recipe: Recipe) -> list[Any]:
    """The score of accepting and rejecting a result that shows the gold document, and one that does not."""
    task = next(small())
    right, wrong = (turn(call("search", f"[{name}] {name}\nkin", query="q")) for name in ("bo", "mi"))
    yes, no = (turn(call("judge", "Go on.", useful=useful)) for useful in (True, False))
    pairs = [(right, yes), (right, no), (wrong, yes), (wrong, no)]
    return [_by_turn(recipe, make_episode(task, *pair, turn(), answer="blue")) for pair in pairs]


def _by_turn(recipe: Recipe, episode: Episode) -> list[float | None]:
    score = asyncio.run(build(recipe).rewards.score(episode.task, episode))
    return [*map(rounded, score.turn_totals), rounded(score.total)]


# --- PPR ---


def grades(method: str, path: str, asked: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """Plays PPR's judge: the grade of a turn is a matter of its length."""
    text = asked["messages"][-1]["content"].rpartition("<turn>")[2].partition("</turn>")[0]
    return said(json.dumps({"score": len(text) % 11}))


def renormalised(recipe: Recipe) -> list[float]:
    """The credit of an episode that succeeds and one that fails; their first turns are graded 0.5 and 0.2."""
    turns = [Step("s", 0, 1), Step("t", 0, 1)]
    table = table_of([Member("g", 1.0, turns), Member("g", 0.0, turns)])
    table = table.with_columns(process=[0.5, 0.9, 0.2, 0.9], value=[0.0] * 4)
    found = run_credit(str(recipe.credit.use), table, **recipe.credit.settings)
    return [round(float(value), 3) for value in found.token]


# --- FrugalRAG ---


def overdoes(task: Task, rng: random.Random) -> Script:
    """Makes the searches of the question and up to two more, and guesses."""
    for query in [*(hop["query"] for hop in task.data["hops"]), *["mi", "du"][: rng.randint(0, 2)]]:
        yield Say(calls=[("search", {"query": query})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


def frugal(recipe: Recipe) -> list[Any]:
    """Both documents at the second search; the same and two more; one document of two at the only search."""
    task = next(small(hops=2))
    first, second, other = (turn(call("search", f"[{name}] {name}\nhue", query="q")) for name in ("bo", "ka", "mi"))
    tries = [(first, second), (first, second, other, other), (first,)]
    return scored(recipe, *(make_episode(task, *turns, turn(), answer="red") for turns in tries))


# --- IGPO ---


def believes(recipe: Recipe) -> list[Any]:
    """The start of a gold answer's call, the credit of two episodes, and outcomes of half an answer and a bad call."""
    parser = parser_of(recipe.agent.format, build(recipe).definitions)
    written = parser.format("", [("answer", {"text": "GOLD"})])
    lead = recipe.information_gain.lead if recipe.information_gain else ""
    # The probability of the gold answer: 0.2, 0.5 and a right answer; 0.2, 0.1 and a wrong one.
    turns = [Step("s", 0, 1), Step("t", 0, 1)]
    table = table_of([Member("g", 1.0, turns), Member("g", 0.0, turns)])
    table = table.with_columns(gold_logprob=np.log([0.2, 0.5, 0.2, 0.1]))
    credit = run_credit(str(recipe.credit.use), table, **{"std": "none", **recipe.credit.settings})
    task = Task.of("t", "?", answer=["big blue"])
    bad = turn(call("search", outcome="malformed"))
    outcomes = scored(recipe, make_episode(task, turn(), answer="blue"), make_episode(task, bad, answer="big blue"))
    return [written.removeprefix(lead)[:4], [round(float(value), 3) for value in credit.turn], outcomes]


# --- R1-Router ---


def small_steps() -> Iterator[Task]:
    """A search step and the last step of two questions."""
    for task in small(n=2):
        step, known = {"query": task.id, "base": "people"}, f"{task.id}: hue {task.data['answer'][0]}"
        asked = {"answer": task.data["answer"]}
        yield Task.of(f"{task.id}/0", "hue?", **asked, steps=[step], known=[], scored=["base_routing"])
        yield Task.of(
            f"{task.id}/1", "hue?", **asked, steps=[], known=[known], scored=["base_routing", "answer_recall"]
        )


def steps(task: Task, rng: random.Random) -> Script:
    """Searches one of two bases at a search step, and guesses at the last."""
    for step in task.data["steps"]:
        yield Say(calls=[("search", {"query": step["query"], "base": rng.choice(["people", "works"])})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


def same(query: str, gold: str) -> float:
    """Stands for the cosine of two queries."""
    return float(query == gold)


def stepwise(recipe: Recipe) -> list[Any]:
    """The tasks made of a question of two steps, the rewards of three first steps, and the credit of the first two."""
    made = [each for each in build(recipe).tasks.tasks if each.id.startswith("author-born/")][:3]
    tasks = [
        ([step["base"] for step in each.data["steps"]], len(each.data.get("known", [])), each.data["scored"])
        for each in made
    ]
    data = {"answer": ["red"], "known": [], "scored": ["base_routing"]}
    task = Task.of("t/0", "?", **data, steps=[{"query": "Bo", "base": "works"}])
    asked = [call("search", query="bo", base=base) for base in ("works", "people")]
    rewards = [_by_turn(recipe, make_episode(task, turn(*calls)))[0] for calls in (asked[:1], asked[1:], asked)]
    table = table_of([Member("g", 0.0, [Step("s", float(reward or 0), 1)]) for reward in rewards[:2]])
    credit = run_credit(str(recipe.credit.use), table, **{"std": "none", **recipe.credit.settings})
    return [tasks, rewards, credit.turn.tolist()]


# --- ARENA ---


def cited() -> Iterator[Task]:
    """Small questions with two references, of which one is right."""
    for task in small():
        name, hue = task.id, task.data["answer"][0]
        yield Task.of(name, f"[1] {name} {hue} [2] mu {hue}\nhue of {name}?", answer=[hue], used=[1])


def cites(task: Task, rng: random.Random) -> Script:
    """Names one of the references or both, and guesses."""
    used = rng.choice(["[1]", "[2]", "[1, 2]"])
    yield Say(f"<relevance>{used}</relevance><analysis>so</analysis><answer>{rng.choice(HUES)}</answer>")


def traceable(recipe: Recipe) -> list[Any]:
    """Outcomes of replies: all right, one reference missing, a wrong answer, no structure."""
    task = Task.of("t", "?", answer=["Red"], used=[1, 3])
    form = "<relevance>{}</relevance>\n<analysis>so</analysis>\n<answer>{}</answer>"
    replies = [
        form.format("[3, 1]", "red"),
        form.format("[1]", "red"),
        form.format("[1, 3]", "blue"),
        "<answer>red</answer>",
    ]
    return scored(recipe, *(make_episode(task, turn(text=reply), answer=reply) for reply in replies))


METHODS: Sequence[Method] = [
    Method(
        "ssrl",
        own_answers,
        self_answered,
        # The turns of a search: the query, and the policy's answer, whose tokens do not train. 0.9 + 0.1, and 0.1.
        [(["main", "search-1", "main"], ["sampled", "spoken", "sampled"], reward) for reward in (1.0, 0.1)],
        sized=sized("knows"),
        warmed=None,
    ),
    Asking(
        "zerosearch",
        heard_noise,
        noises,
        # (4^(i/2) - 1) / 3 * 0.9.
        [0.0, 0.3, 0.9, "useful", "noisy"],
        small=("curriculum=[{zerosearch: {start: 0.0, end: 0.9}}]", "train.iterations=2"),
        sized=sized("guesses", "tools.0.url=URL"),
        warmed=None,
        answer=search_engine,
    ),
    Asking(
        "router-r1",
        component("router_cost"),
        routed,
        # 50 * 0.3 of 200: 0.1 + 0.9 * (1 - 15 / 200). 100 * 0.9: 0.1 + 0.9 * (1 - 90 / 200). Wrong: 0. No answer: -1.
        [0.932, 0.595, 0.0, -1.0],
        sized=sized(
            "routes",
            "tools.0.models.small.url=URL/small",
            "tools.0.models.large.url=URL/large",
            "rewards.router_cost.high=20",
        ),
        warmed=None,
        answer=talks,
    ),
    Method(
        "reseek",
        of_turns("evidence_judgement"),
        judged,
        # A right judgement +0.3, rejecting the useful -0.3, accepting the useless -0.6; the answer is right.
        [[0.0, 0.3, 0.0, 1.0], [0.0, -0.3, 0.0, 1.0], [0.0, -0.6, 0.0, 1.0], [0.0, 0.3, 0.0, 1.0]],
        sized=sized("judges", PAGES, "tools.0.k=1"),
        warmed=None,
    ),
    Asking(
        "ppr",
        of_turns("process"),
        renormalised,
        # r = p + R - 1, and R at the last turn: 0.5, 1 and -0.8, 0. Summed over later turns: 1.5, 1, -0.8, 0,
        # whose mean is 0.425 and whose deviation is 1.028.
        [1.046, 0.56, -1.192, -0.414],
        sized=sized("guesses", PAGES, "tools.0.k=1", "rewards.process.judge.url=URL"),
        warmed=None,
        answer=grades,
    ),
    Method(
        "frugalrag",
        component("frugal_search"),
        frugal,
        # Stopped at the last useful search: 2. Two more of at most 5 + 1: log((1 - 2/6) / (2/6)) = log 2. Half of the
        # evidence after one search: log((1 - 5/6) / (5/6)) = -log 5.
        [2.0, 0.693, -1.609],
        sized=sized("overdoes", PAGES, "tools.0.k=1", "tasks.args.hops=2"),
        warmed=None,
    ),
    Method(
        "igpo",
        lambda run: [[turn.gold_logprob for turn in each.turns] for each in run.played],
        believes,
        # Gains 0.3 and -0.1, outcomes 1 and 0; their mean is 0.3. Summed with the next turn: 0 + 0.7, -0.4 - 0.3.
        # F1 of one word of two: 2/3. A call that cannot be read: -2.
        ["GOLD", [0.7, 0.7, -0.7, -0.3], [0.667, -2.0]],
        sized=sized("guesses", PAGES, "tools.0.k=1", "information_gain.lead=<answer>"),
        warmed=None,
    ),
    Method(
        "r1-router",
        of_turns("base_routing"),
        stepwise,
        # The book, its author, the answer. Query and base are right: 0.5 + 0.5; a wrong base or two: 0.5.
        # 1 and 0.5 against their mean.
        [
            [
                (["works"], 0, ["base_routing"]),
                (["people"], 1, ["base_routing"]),
                ([], 2, ["base_routing", "answer_recall"]),
            ],
            [1.0, 0.5, 0.5],
            [0.25, -0.25],
        ],
        sized=sized(
            "steps",
            f"tasks={{source: '{HERE}:small_steps', args: {{}}}}",
            *(f"tools.0.of.{base}.corpus={HERE}:pages" for base in ("places", "people", "works")),
            "rewards.base_routing.scorer=../../../tests/methods/search.py:same",
        ),
        warmed=None,
    ),
    Method(
        "arena",
        component("relevance"),
        traceable,
        # 1 + 1 + 1 and the bonus of 10; 1 + 1 + 0.5; 1 + 0 + 1; 0 + 1 + 0.
        [13.0, 2.5, 2.0, 1.0],
        sized=sized(
            "cites", f"tasks={{source: '{HERE}:cited', args: {{}}}}", "agent.max_turns=1", "sampling.max_tokens=80"
        ),
        warmed=None,
    ),
]
