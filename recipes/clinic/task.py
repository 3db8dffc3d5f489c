"""Patients of a clinic that does not exist: a doctor asks them, or looks into the records, and names the disease."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Agent, Episode, Message, Say, Task, Tool, ToolError, tool
from agentrl.registry.references import load_object

HERE = Path(__file__).parent
world = load_object("./world.py:clinic", HERE)
named = load_object("./world.py:named", HERE)
presented = load_object("./world.py:presented", HERE)
similar = load_object("./world.py:similar", HERE)
literature = load_object("./world.py:literature", HERE)

PATIENT = """You are a patient who talks with a doctor. Answer each question in one sentence, from your report alone. \
Name no disease and no treatment. If your report has nothing to do with the question, say: Sorry, I cannot answer that.

Your report: """


# --- a consultation ---------------------------------------------------------------------------------------------------


def patients(n: int = 512, seed: int = 0, held_out: bool = False, choices: int = 6) -> Iterator[Task]:
    """Patients who tell one symptom, and the guidelines of the diseases that they may have.

    The report of a patient, which the doctor does not see, is in `task.data`: all symptoms of the disease, and the
    result of its test.

    Args:
        held_out: patients for evaluation: other numbers than those of training.
        choices: diseases in the guidelines, even: the one that it is, its twin, and other pairs, which share
            the first symptom as far as there are such.
    """
    diseases = [*world().diseases.values()]
    for number in range(n):
        rng = random.Random(f"{seed} {held_out} {number}")
        own = rng.choice(diseases)
        first = rng.choice(own.symptoms)
        pairs = [each for each in diseases if each.result == "high" and own.name not in (each.name, each.twin)]
        rng.shuffle(pairs)
        pairs.sort(key=lambda each, first=first: first not in each.symptoms)  # type: ignore[misc]
        names = [own.name, own.twin, *(name for each in pairs for name in (each.name, each.twin))][:choices]
        rng.shuffle(names)
        guide = "\n".join(world().diseases[name].guideline for name in names)
        yield Task.of(
            f"patient/{seed}/{'eval' if held_out else 'train'}/{number}",
            f"{guide}\n\nThe patient says: I have {first}.",
            disease=own.name,
            treatment=own.treatment,
            symptoms=[*own.symptoms],
            test=own.test,
            result=own.result,
            choices=names,
            report=f"I have {', '.join(own.symptoms)}, and nothing else. My {own.test} test is {own.result}, and all "
            "other tests are normal.",
        )


class Consultation(Agent):
    """A doctor, who is the policy, asks one question a turn, until the doctor names a diagnosis or has no turn left.

    `info["acts"]` has a word for each turn of the doctor: `answered`; `unknown`: the patient is sorry; `repeated`: all
    that is asked for was asked for before; `several`: not one question; `form`: tags are missing; `diagnosis`;
    `late`: no diagnosis in the last turn. The patient hears questions that are none of the last five only.

    Args:
        turns: turns of the doctor, or the least and the most, of which a number is drawn in each episode.
        tagged: a reply must be `<think>...</think><answer>...</answer>`, and the answer is what the patient hears.
        prompt: system prompt of the patient before the report.
        policy: the auxiliary policy that plays the patient.
    """

    def __init__(
        self,
        turns: int | tuple[int, int] = 8,
        tagged: bool = False,
        prompt: str = PATIENT,
        policy: str = "patient",
    ) -> None:
        self.turns, self.tagged, self.prompt, self.policy = turns, tagged, prompt, policy

    async def run(self, session: Any) -> None:
        """Talks to the end of the consultation."""
        least, most = (self.turns, self.turns) if isinstance(self.turns, int) else self.turns
        turns = session.rng.randint(least, most)
        told = {"role": "system", "content": self.prompt + session.task.data["report"]}
        patient = session.context("patient", [told], policy=self.policy, tools=[])
        acts: list[str] = []
        asked: set[str] = set()
        session.info.update(acts=acts, turns=turns)
        for turn in range(1, turns + 1):
            reply = await session.generate()
            said = (
                _tagged(session.turns[-1].text) if self.tagged else reply.text if reply.answer is None else reply.answer
            )
            if said is not None and "Diagnosis:" in said:
                acts.append("diagnosis")
                return session.finish("answer", said)  # type: ignore[no-any-return]
            if turn == turns:
                acts.append("late")
                break
            act, answer = self._refused(said, asked)
            if said is not None and not act:
                asked.update(_topics(said))
                patient.say(said)
                answer = (await patient.generate()).text.strip()
                act = "unknown" if "Sorry" in answer else "answered"
            acts.append(act)
            session.say(f"{answer}\nTurn {turn}/{turns}.")
        session.finish("answer", "")

    def _refused(self, said: str | None, asked: set[str]) -> tuple[str, str]:
        """Returns the fault of a reply, and what the doctor hears instead of the patient; "" without a fault."""
        if said is None:
            return "form", "Write <think>[thought]</think><answer>[question or diagnosis]</answer>, and nothing else."
        if said.count("?") != 1:
            return "several", "Ask one question at a time."
        if _topics(said) <= asked:
            return "repeated", "You have asked this before."
        return "", ""


def _tagged(text: str) -> str | None:
    """Returns the text between the tags of the answer; None if the reply has another form."""
    found = re.fullmatch(r"\s*<think>.*?</think>\s*<answer>((?:(?!</?answer>).)*)</answer>\s*", text, re.DOTALL)
    return found and found[1].strip()


def _topics(question: str) -> set[str]:
    """The symptoms and tests that a question is about, else its words."""
    return {*named(question)} or {" ".join(re.findall(r"\w+", question.lower()))}


def answer(symptoms: Sequence[str], test: str, result: str, question: str) -> str:
    """Plays a patient by rules: answers for the first symptom or test that the question names."""
    for topic in named(question):
        if topic.endswith(" test"):
            return f"The {topic} is {result if topic == f'{test} test' else 'normal'}."
        return f"Yes, I have {topic}." if topic in symptoms else f"No, I have no {topic}."
    return "Sorry, I cannot answer that."


def parts(said: str | None) -> tuple[str, str]:
    """The diagnosis and the recommendation of a doctor's last words; "": there is none."""
    diagnosis = re.search(r"Diagnosis:(.*?)(?=Recommendation:|$)", said or "", re.DOTALL)
    advice = re.search(r"Recommendation:(.*?)(?=\n|$)", said or "", re.DOTALL)
    return tuple(found[1].strip(" .\n") if found else "" for found in (diagnosis, advice))  # type: ignore[return-value]


def solved(task: Task, episode: Episode) -> float:
    """1 if the diagnosis and the recommendation are those of the guideline."""
    return float(parts(episode.answer) == (task.data["disease"], task.data["treatment"]))


# --- records ----------------------------------------------------------------------------------------------------------

K = 6
"""Records that `match` shows. Cases are such that the disease or its twin is among them."""


def cases(n: int = 512, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """Cases with four symptoms of a disease, one that is not its own, and the result of the test.

    Args:
        held_out: one eighth of the cases (by a hash of what is told) are for evaluation, not the others.
    """
    rng, number = random.Random(f"cases {seed}"), 0
    diseases = [*world().diseases.values()]
    while number < n:
        own = rng.choice(diseases)
        found = presented(own, rng)
        if (zlib.crc32(" ".join(sorted(found)).encode()) % 8 == 0) != held_out or _is_unclear(found, own):
            continue
        yield Task.of(
            f"case/{seed}/{'eval' if held_out else 'train'}/{number}",
            f"A patient has {', '.join(found)}. The {own.test} test is {own.result}. Which disease is it?",
            answer=own.name,
            symptoms=found,
            test=own.test,
            result=own.result,
        )
        number += 1


def _is_unclear(symptoms: Sequence[str], own: Any) -> bool:
    """If another pair fits as well, or if the records that are most alike show no patient of this pair."""
    others = (each for each in world().diseases.values() if own.name not in (each.name, each.twin))
    own_fit = len({*symptoms} & {*own.symptoms})
    if any(len({*symptoms} & {*each.symptoms}) >= own_fit for each in others):
        return True
    return not {own.name, own.twin} & {each.disease for each in similar(symptoms, K)}


class Records(Tool):
    """The records and the guidelines of the clinic.

    Args:
        k: records that `match` shows.
    """

    parallel = True

    def __init__(self, k: int = K) -> None:
        self.k = k

    async def open(self, task: Task, sandbox: object) -> None:
        self.shown: set[str] = set()

    @tool
    def match(self, symptoms: str) -> str:
        """Show the records of the patients who are most alike.

        Args:
            symptoms: symptoms, with commas between them
        """
        found = similar(named(symptoms), self.k)
        if not found:
            raise ToolError("no record has one of these symptoms: give symptoms of the case, as they are written there")
        return self._shown([str(each) for each in found])

    @tool
    def lookup(self, diseases: str) -> str:
        """Show the guidelines of diseases.

        Args:
            diseases: names of diseases, with commas between them
        """
        known = {name.lower(): each for name, each in world().diseases.items()}
        found = [known[name] for name in listed(diseases.lower()) if name in known]
        if not found:
            raise ToolError("there is no such disease: give names as records show them")
        return self._shown([each.guideline for each in found])

    def _shown(self, lines: Sequence[str]) -> str:
        self.shown.update(lines)
        return "\n".join(lines)

    def state_key(self) -> str:
        return "\n".join(sorted(self.shown))


def listed(text: str) -> list[str]:
    """The parts of a text between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


# --- scripts ----------------------------------------------------------------------------------------------------------


def patient(task: Task, rng: random.Random, messages: Sequence[Message]) -> Iterator[Say]:
    """A patient without a model: answers what the report says."""
    own = task.data
    while True:
        yield Say(answer(own["symptoms"], own["test"], own["result"], str(messages[-1]["content"])))


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Asks for what splits the diseases that are left most evenly, until one is left."""
    heard = ""
    left = [world().diseases[name] for name in task.data["choices"]]
    while len(left) > 1:
        topics = sorted({symptom for each in left for symptom in each.symptoms} | {each.test for each in left})
        sides = {topic: _split(left, topic) for topic in topics}
        topic = max(topics, key=lambda each: len(left) - max(map(len, sides[each].values())))
        is_test = topic in {each.test for each in left}
        heard = _heard((yield Say(f"What does the {topic} test show?" if is_test else f"Do you have {topic}?")))
        sign = next((word for word in ("high", "low", "normal") if word in heard), "yes" if "Yes" in heard else "no")
        left = sides[topic].get(sign, left[:1])
    yield Say(diagnosed(left[0].name))


def _split(left: Sequence[Any], topic: str) -> dict[str, list[Any]]:
    """The diseases by what their patients answer about a symptom or a test."""
    sides: dict[str, list[Any]] = {}
    is_test = topic in {each.test for each in left}
    for each in left:
        told = (each.result if each.test == topic else "normal") if is_test else "no"
        sides.setdefault("yes" if not is_test and topic in each.symptoms else told, []).append(each)
    return sides


def _heard(messages: Sequence[Message]) -> str:
    return str(messages[-1]["content"])


def diagnosed(name: str) -> str:
    """The last words of a doctor."""
    return f"Diagnosis: {name}. Recommendation: {world().diseases[name].treatment}."


def random_doctor(task: Task, rng: random.Random) -> Iterator[Say]:
    """Asks for symptoms of the guidelines, and names one of the diseases."""
    known = [world().diseases[name] for name in task.data["choices"]]
    for _ in range(rng.randint(0, 3)):
        yield Say(f"Do you have {rng.choice(rng.choice(known).symptoms)}?")
    yield Say(diagnosed(rng.choice(known).name))


def researcher(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Matches the symptoms, looks up the diseases of the records, and names the one whose guideline the case fits."""
    messages = yield Say(calls=[("match", {"symptoms": ", ".join(task.data["symptoms"])})])
    found = [*dict.fromkeys(re.findall(r"-> (.+)", _heard(messages)))]
    twins = [world().diseases[name].twin for name in found]
    messages = yield Say(calls=[("lookup", {"diseases": ", ".join([*found, *twins])})])
    sign = f"; {task.data['test']} {task.data['result']};"
    fits = {line: len({*task.data["symptoms"]} & {*named(line)}) for line in _heard(messages).split("\n")}
    best = max(fits, key=lambda line: (sign in line, fits[line]))
    yield Say(calls=[("answer", {"text": best.partition(":")[0]})])


def random_researcher(task: Task, rng: random.Random) -> Iterator[Say]:
    """Matches some symptoms, and names any disease."""
    symptoms = rng.sample(task.data["symptoms"], rng.randint(1, 3))
    yield Say(calls=[("match", {"symptoms": ", ".join(symptoms)})])
    yield Say(calls=[("answer", {"text": rng.choice([*world().diseases])})])
