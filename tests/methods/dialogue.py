"""Methods of dialogues: with patients of a clinic, over its records, and on what was said before."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentrl import Say
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.recipe import Recipe
from agentrl.config.stages import SftStage
from agentrl.registry.references import load_object
from agentrl.rollouts.builder import build
from agentrl.training.stages.course import Course
from agentrl.training.stages.files import raw_texts
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode
from agentrl.types.paths import data_path
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, table_of
from tests.estimators.tables import run as run_credit
from tests.methods.credit import rounded
from tests.methods.curricula import stages_learned
from tests.methods.proofs import Method, Run
from tests.methods.rewards import BOATS, OWN, Reply
from tests.methods.rewards import paid as of_group
from tests.methods.roles import rolled
from tests.methods.stub_api import Asking, between
from tests.rewards.make import call, make_episode, turn

HERE = "tests.methods.dialogue"
CLINIC = data_path("recipes", "clinic")


def component(name: str) -> Callable[[Run], Sequence[Any]]:
    """By episode: a component of its reward."""
    return lambda run: [each.components[name] for each in run.played if name in each.components]


def paid(recipe: Recipe, *written: Episode) -> list[dict[str, float | None]]:
    """The components of episodes that are written by hand, and their reward."""
    rewards = build(recipe).rewards
    scores = [asyncio.run(rewards.score(each.task, each)) for each in written]
    return [rounded_values({**score.components, "reward": score.total}) for score in scores]


def rounded_values(values: dict[str, Any]) -> dict[str, Any]:
    """The values, to three places."""
    return {name: None if value is None else round(float(value), 3) for name, value in values.items()}


TINY = (
    "model={scratch: {hidden: 64, layers: 2, heads: 2, vocab_size: 400, max_context: 1024}, device: cpu}",
    "train.trainable=null", "train.lr=1e-3", "train.kl={coef: 1.0e-3}", "agent.system=null",
    "warm_start={script: some, episodes: 64, steps: 100, batch: 4, lr: 3.0e-3}",
)  # fmt: skip
"""Overrides: a policy from scratch that has seen what the script of a method does. The reference of `kl` keeps it."""

# --- DoctorAgent-RL ---------------------------------------------------------------------------------------------------

OF_TWO = "tasks={source: '../../clinic/task.py:patients', args: {n: 16, choices: 2}}"


def patient(body: Any) -> str:
    """Plays the patient of a report, which is in the system message."""
    report = str(body["messages"][0]["content"])
    told = re.search(r"I have (.*), and nothing else. My (\w+) test is (\w+)", report)
    assert told is not None
    answer = load_object("./task.py:answer", CLINIC)
    return str(answer(told[1].split(", "), told[2], told[3], str(body["messages"][-1]["content"])))


def doctor(task: Task, rng: random.Random) -> Iterator[Say]:
    """Asks well, again, without tags, two questions, for the age; names the disease, and a part of the treatment."""
    own = task.data
    for text in (f"Do you have {own['symptoms'][0]}?", f"Have you {own['symptoms'][0]}?"):
        yield _tagged(text)
    yield Say("Do you have rash?")
    yield _tagged("Do you have rash? Or fever?")
    yield _tagged("How old are you?")
    yield _tagged(f"Diagnosis: {own['disease']}. Recommendation: {own['treatment'].split()[0]}.")


def talker(task: Task, rng: random.Random) -> Iterator[Say]:
    """Asks for one symptom after the other."""
    for symptom in task.data["symptoms"]:
        yield _tagged(f"Do you have {symptom}?")


def _tagged(text: str) -> Say:
    return Say(f"<think>so</think><answer>{text}</answer>")


def consulted(recipe: Recipe) -> list[Any]:
    """The turns that a consultation may have; what one of six turns pays, and one without a diagnosis."""
    found: list[Any] = [str(recipe.agent.settings.get("turns"))]
    for script, turns in (("doctor", 6), ("talker", 3)):
        settings = [f"scripts.{script}={HERE}:{script}", f"agent.turns={turns}", "policies.patient={script: patient}"]
        (each,) = rolled(recipe, script, 1, settings)
        found.append(rounded_values({**each.components, "reward": each.reward}))
    return found


# One answer, one "Sorry": 1 - 1. A repetition, no tags, two questions: 3 x -2. The name is right: 5; of the treatment
# one word of five is said: 5 x 2 / (1 + 5). Then two answers, and no diagnosis in the last turn.
CONSULTED = [
    "[2, 10]",
    {"solved": 0.0, "information": 0.0, "compliance": -6.0, "diagnosis": 6.667, "reward": 0.667},
    {"solved": 0.0, "information": 2.0, "compliance": -5.0, "diagnosis": 0.0, "reward": -3.0},
]

# --- Deep-DxSearch ----------------------------------------------------------------------------------------------------

CASE = Task.of(
    "case", "Which disease is it?", answer="Sesom gout", symptoms=["rash", "fever"], test="blood", result="high"
)


def match(symptoms: str, *diseases: str, text: str = "Next.") -> Any:
    """A turn that matches symptoms, and the diseases of the records that it brings up."""
    shown = "\n".join(f"patient {k}: rash -> {disease}" for k, disease in enumerate(diseases))
    return turn(call("match", shown, symptoms=symptoms), text=text)


def lookup(*diseases: str, text: str = "Next.") -> Any:
    """A turn that looks diseases up."""
    return turn(call("lookup", "", diseases=", ".join(diseases)), text=text)


def case(*turns: Any, answer: str | None = "Sesom gout") -> Episode:
    """An episode with an answer."""
    return make_episode(CASE, *turns, answer=answer)


END = turn(text="So.")


def diagnosed(recipe: Recipe) -> list[Any]:
    """What diagnoses pay whose matches, look-ups and answers differ."""
    written = [
        case(match("rash, fever", "Sesom gout"), lookup("Sesom gout", "Bom ague"), END),
        case(match("rash, fever", "Sesom gout"), match("rash, cough", "Bom ague"), END, answer="Bom gout"),
        case(match("rash", "Bom ague"), match("rash, cough", "Sesom gouts"), END),
        case(
            match("rash", "Bom ague"),
            match("cough, chills", "Bom ague"),
            match("fever, thirst", "Bom ague"),
            END,
            answer="x",
        ),
        case(*[match(f"rash, {k}", "Sesom gout") for k in "abcd"], END),
        case(match("rash, fever", "Sesom gout"), turn(text="<tool_call>")),
        case(match("rash, fever", "Sesom gout"), lookup(*map(str, range(10)), "Sesom gout"), END),
        case(match("rash, fever", "Sesom gout"), END, answer=None),
    ]
    found = paid(recipe, *written)
    return [[each.get(name) for name in ("form", "matching", "looking", "diagnosis", "reward")] for each in found]


HALF = 0.5 ** (1 / 3)
# By row: right; the last match did not bring it up, and the answer has one word of two; right, but too little was
# changed; not found by three that differ enough; four matches; no thought after the match; eleven diseases; no answer.
DIAGNOSED = [
    [1, 1, 1, 1, 1],
    [1, 0.5, 0, HALF, 0.8 * 0.5 + 0.15 * HALF],
    [1, 0.5, 0, 1, 0.8 * 0.5 + 0.15],
    [1, 0.4, 0, 0, 0.8 * 0.4],
    [0, 0, 0, 1, 0],
    [0, 1, 0, 1, 0],
    [1, 1, 0, 1, 0.95],
    [0, 1, 0, 0, 0],
]  # fmt: skip

# --- Sotopia-RL -------------------------------------------------------------------------------------------------------


def company(body: Any) -> str:
    """Plays the partner, who agrees if asked kindly, and the judge, to whom kind utterances matter most."""
    text = str(body["messages"][-1]["content"])
    if "You judge" not in text:
        return "agreed" if "please" in text.lower() else "No."
    heard = between(text, "conversation")
    utterances = [part.partition("[observation")[0] for part in re.split(r"\[turn \d+\]", heard)[1:]]
    score = {"goal": 10, "relationship": 5, "knowledge": 0}[text.partition("one dimension: ")[2].partition(",")[0]]
    return json.dumps({"score": score, "utterances": [3 if "Please" in each else 1 for each in utterances]})


def scene(recipe: Recipe) -> list[Any]:
    """What each utterance of a conversation of two is paid, and what they are credited in a group of two."""
    task = Task.of("t", "You are Ana. Your goal: get the tent.")
    turns = [turn(text="Please, the tent."), turn(text="Goodbye")]
    written = make_episode(task, *turns, answer="Goodbye", info={"partner": ["No.", "agreed"]})
    score = asyncio.run(build(recipe).rewards.score(task, written))
    members = [Member("g", 0.0, [Step("a", reward, 1) for reward in rewards]) for rewards in ([0.5, 0.25], [0.25, 0.0])]
    credit = run_credit(str(recipe.credit.use), table_of(members), **{**recipe.credit.settings, "std": "none"})
    return [rounded(each or 0.0 for each in score.turn_totals), score.total, rounded(credit.turn)]


# --- OctoThinker ------------------------------------------------------------------------------------------------------


def text_stages(recipe: Recipe) -> list[Any]:
    """By stage of raw text: the rate after the warm-up and half way from there, and if the whole text trains."""
    found = []
    for stage in stages_of(recipe):
        if not isinstance(stage.settings, SftStage) or stage.settings.text is None:
            continue
        (first, *_) = raw_texts(stage.settings.text, recipe.base, None, "text")
        (sample,) = first.samples(ByteTokenizer(), 4096)
        told = ByteTokenizer().decode(sample.token_ids[sample.loss_mask][:-1].tolist())
        course = Course([sample], 105, 1, 1.0, 0, schedule=stage.settings.lr_schedule)
        found.append((stage.name, [round(course.rate(step), 3) for step in (5, 55)], told == first.text))
    return found


def text_losses(run: Run) -> list[Any]:
    """The losses of the stages of raw text."""
    return [line["loss"] for line in run.reader.metrics() if line.get("stage") in ("stable", "decay")]


def utterances(run: Run) -> list[Any]:
    """By utterance of the policy: what it had to do with the goal and the relationship."""
    own = [turn for each in run.played for turn in each.own_turns]
    return [[turn.rewards.get(name) for name in ("goal", "relationship", "knowledge")] for turn in own]


METHODS: Sequence[Method] = [
    Asking(
        "doctor-agent",
        component("information"),
        consulted,
        CONSULTED,
        sized=(*TINY, OF_TWO, "sampling.max_tokens=64"),
        warmed=None,
        answer=patient,
        asks=("policies.patient.engine.urls",),
    ),
    Method(
        "deep-dxsearch",
        component("matching"),
        diagnosed,
        [rounded(row) for row in DIAGNOSED],
        sized=(
            *TINY,
            "tasks.args.n=16",
            "agent.max_turns=4",
            "agent.format=tags",
            "agent.describe_tools=false",
            "sampling.max_tokens=64",
        ),
        warmed=None,
    ),
    # A twentieth of 105 steps is a warm-up of 5; half way of the other 100, a cosine is at a half.
    Method(
        "octothinker",
        text_losses,
        text_stages,
        [("stable", [1.0, 1.0], True), ("decay", [1.0, 0.5], True)],
        small=("stages.0.sft.steps=40", "stages.1.sft.steps=20", "stages.2.sft.steps=60", "stages.2.sft.episodes=64"),
        warmed=None,
        learns=stages_learned,
    ),
    # All four words; three of four, two of three pairs, one of two triples, none of one (1/2): .125^(1/4). Both words,
    # no pair of one (1/2), half as long as the reference: e^(1 - 4/2) / 2^(1/2). Without an answer 0.
    Method(
        "tensor-bleu",
        component("bleu"),
        of_group(
            *(
                Reply(f"<answer>{said}</answer>")
                for said in ("zwei rote Boote hier", "zwei rote Boote dort", "zwei Boote")
            ),
            Reply("no"),
            task=BOATS,
        ),
        [1.0, 0.595, 0.26, 0.0],
        sized=("tasks.args.n=8", *OWN),
        warmed=None,
    ),
    # Goal 10/10, relationship 5/10, knowledge 0; the kind utterance counts 3/3 in each, the other 1/3: means of 1.5 / 3
    # and 0.5 / 3. Of four utterances with 0.5, 0.25, 0.25 and 0 the mean is 0.25; later ones do not count.
    Asking(
        "sotopia",
        utterances,
        scene,
        [[0.5, 0.167], 0.0, [0.25, 0.0, 0.0, -0.25]],
        sized=(*TINY, "tasks.args.n=8", "agent.turns=3", "sampling.max_tokens=24"),
        warmed=None,
        answer=company,
        asks=(
            "policies.partner.engine.urls",
            "rewards.goal.judge",
            "rewards.relationship.judge",
            "rewards.knowledge.judge",
        ),
        kept=("policies.partner.engine.urls",),
    ),
]
