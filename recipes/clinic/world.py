"""A clinic that does not exist: its diseases, their symptoms, tests and treatments, and the records of its patients.

All of it is made from a seed, with names of our own: no model can know a diagnosis, so it must be asked or looked up.
Diseases come in pairs with the same symptoms. A test tells the two apart.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CLINIC = 5  # the seed of the clinic
SYMPTOMS = (
    "headache", "fever", "chills", "cough", "rash", "thirst", "nausea", "dizziness", "hiccups", "cramps", "earache",
    "toothache", "swelling", "itching", "tremor", "numbness", "hoarseness", "insomnia", "sneezing", "backache",
    "heartburn", "sweating", "blisters", "nosebleeds", "yawning", "bruises", "palpitations", "stiffness",
)  # fmt: skip
TESTS = ("blood", "urine", "breath", "pulse", "skin", "eye")
KINDS = ("fever", "palsy", "ague", "gout", "croup", "scurvy")
DRUGS = ("sorrel", "henbane", "yarrow", "mullein", "borage", "tansy", "comfrey", "arnica")
FORMS = ("drops", "pills", "tea", "balm")
MANNERS = ("rest", "walk daily", "drink water", "avoid salt", "keep warm")
PAIRS = 24
EACH = 5  # symptoms of a disease
RECORDS = 8  # patients of a disease


@dataclass(frozen=True)
class Disease:
    """The guideline of a disease. `twin` has the same symptoms, and another result of the same test."""

    name: str
    twin: str
    symptoms: tuple[str, ...]
    test: str
    result: str
    treatment: str

    @property
    def guideline(self) -> str:
        """One line: symptoms, test and treatment."""
        return f"{self.name}: {', '.join(self.symptoms)}; {self.test} {self.result}; {self.treatment}"


@dataclass(frozen=True)
class Record:
    """A patient whom the clinic has treated: four of the symptoms of the disease, and one that is not its own."""

    number: int
    symptoms: tuple[str, ...]
    disease: str

    def __str__(self) -> str:
        return f"patient {self.number}: {', '.join(self.symptoms)} -> {self.disease}"


@dataclass(frozen=True)
class Clinic:
    """The diseases by name, and the records."""

    diseases: dict[str, Disease]
    records: list[Record]


@functools.cache
def clinic(seed: int = CLINIC) -> Clinic:
    """The clinic of a seed: 48 diseases, 384 records."""
    rng = random.Random(f"clinic {seed}")
    names, seen = _names(rng), set[frozenset[str]]()
    diseases: list[Disease] = []
    while len(diseases) < 2 * PAIRS:
        symptoms = tuple(rng.sample(SYMPTOMS, EACH))
        # Two pairs share at most three symptoms: four of five and the test tell every disease.
        if any(len(other & frozenset(symptoms)) > EACH - 2 for other in seen):
            continue
        seen.add(frozenset(symptoms))
        kind, test = rng.choice(KINDS), rng.choice(TESTS)
        pair = [f"{next(names)} {kind}" for _ in range(2)]
        for name, twin, result in zip(pair, pair[::-1], ("high", "low"), strict=True):
            treatment = f"{rng.choice(DRUGS)} {rng.choice(FORMS)} and {rng.choice(MANNERS)}"
            diseases.append(Disease(name, twin, symptoms, test, result, treatment))
    records = [
        Record(number, tuple(presented(each, rng)), each.name)
        for number, each in enumerate((each for each in diseases for _ in range(RECORDS)), 1)
    ]
    return Clinic({each.name: each for each in diseases}, records)


def presented(disease: Disease, rng: random.Random) -> list[str]:
    """Four symptoms of the disease and one that is not its own, in any order."""
    others = [each for each in SYMPTOMS if each not in disease.symptoms]
    found = [*rng.sample(disease.symptoms, EACH - 1), rng.choice(others)]
    rng.shuffle(found)
    return found


def similar(symptoms: Sequence[str], k: int) -> list[Record]:
    """The records that share most symptoms, best first; those with as many in their order."""
    shared = {each.number: len({*symptoms} & {*each.symptoms}) for each in clinic().records}
    ranked = sorted(clinic().records, key=lambda each: -shared[each.number])
    return [each for each in ranked[:k] if shared[each.number]]


def named(text: str) -> list[str]:
    """The symptoms and tests that a text names."""
    words = text.lower()
    return [each for each in SYMPTOMS if each in words] + [f"{each} test" for each in TESTS if f"{each} test" in words]


def literature() -> list[dict[str, str]]:
    """Articles to search: one of each symptom, and one of each pair of diseases."""
    diseases = clinic().diseases.values()
    articles = []
    for symptom in SYMPTOMS:
        seen = ", ".join(each.name for each in diseases if symptom in each.symptoms)
        title = symptom.capitalize()
        articles.append({"id": f"symptom/{symptom}", "title": title, "text": f"{title} is seen in {seen}."})
    for each in diseases:
        if each.result == "high":
            told = f"The {each.test} test is high in {each.name} and low in {each.twin}."
            text = f"Both show {', '.join(each.symptoms)}. {told}"
            id = f"disease/{each.name.lower().replace(' ', '-')}"
            articles.append({"id": id, "title": f"{each.name} and {each.twin}", "text": text})
    return articles


def _names(rng: random.Random) -> Iterator[str]:
    """Names of two syllables, none twice."""
    seen = set[str]()
    while True:
        name = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2)) + rng.choice("lmnrsx")
        if name not in seen:
            seen.add(name)
            yield name.capitalize()
