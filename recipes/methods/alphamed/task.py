"""Multiple-choice questions of school medicine."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task
from agentrl.types.episode import Episode

FACTS = {
    "Lack of which vitamin causes {}?": {
        "scurvy": "vitamin C", "rickets": "vitamin D", "beriberi": "vitamin B1", "pellagra": "vitamin B3",
        "night blindness": "vitamin A", "bleeding of newborns": "vitamin K",
    },
    "Which organ makes {}?": {
        "insulin": "pancreas", "bile": "liver", "urine": "kidney", "adrenaline": "adrenal gland",
        "thyroxine": "thyroid", "growth hormone": "pituitary",
    },
    "Where is the {}?": {
        "femur": "thigh", "humerus": "upper arm", "tibia": "lower leg", "radius": "forearm", "sternum": "chest",
        "mandible": "jaw",
    },
    "What causes {}?": {
        "malaria": "a parasite", "measles": "a virus", "tuberculosis": "a bacterium", "ringworm": "a fungus",
        "Down syndrome": "a chromosome", "lead poisoning": "a metal",
    },
}  # fmt: skip
LETTERS = "ABCD"


def questions(n: int = 512, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` questions with four options in any order. Those for evaluation have other options and orders.

    Args:
        seed, held_out: choose options and orders.
    """
    every = [(form, about) for form, facts in FACTS.items() for about in facts]
    for k in range(n):
        rng = random.Random(f"{seed} {held_out} {k}")
        form, about = every[k % len(every)]
        right = FACTS[form][about]
        options = [right, *rng.sample([other for other in FACTS[form].values() if other != right], 3)]
        rng.shuffle(options)
        shown = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=True))
        answer = LETTERS[options.index(right)]
        yield Task.of(f"med/{seed}/{held_out}/{k}", f"{form.format(about)}\n{shown}", answer=answer, option=right)


def words(task: Task, episode: Episode) -> float:
    """1 for the letter, 1/2 for an answer that names the right option in words."""
    answer = (episode.answer or "").strip()
    return 1.0 if answer == task.data["answer"] else 0.5 * (task.data["option"] in answer)


def student(task: Task, rng: random.Random) -> Iterator[Say]:
    """Names the option, and answers with its letter."""
    yield Say(f"It is {task.data['option']}. <answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with any letter."""
    yield Say(f"<answer>{rng.choice(LETTERS)}</answer>")
