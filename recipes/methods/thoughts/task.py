"""Two small tasks of one reply with a thought: a sum among options, and words that meet constraints."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from agentrl import Say, Task
from agentrl.types.episode import Episode

LETTERS = "ABC"
WORDS = ["red", "blue", "sun", "moon", "cat", "dog", "tree", "rain"]


def choices(n: int = 512, held_out: bool = False) -> Iterator[Task]:
    """`n` sums of two, three and four numbers below ten, with three options. Sums of two need no thought."""
    for k in range(n):
        rng = random.Random(f"choice {held_out} {k}")
        numbers = [rng.randint(1, 9) for _ in range(2 + k % 3)]
        options = rng.sample([sum(numbers) + off for off in rng.choice([(0, 1, 2), (-1, 0, 1)])], 3)
        yield Task.of(
            f"choice/{held_out}/{k}",
            f"{' + '.join(map(str, numbers))}? {listed(options)}",
            answer=LETTERS[options.index(sum(numbers))],
            options=options,
            numbers=numbers,
            hard=len(numbers) > 2,
        )


def listed(options: Sequence[int]) -> str:
    """The options with their letters."""
    return " ".join(f"{letter} {option}" for letter, option in zip(LETTERS, options, strict=True))


def requests(n: int = 512, held_out: bool = False) -> Iterator[Task]:
    """`n` requests with three constraints each: how many words, one that is among them, and the last one."""
    for k in range(n):
        rng = random.Random(f"request {held_out} {k}")
        count, (among, last) = rng.randint(2, 4), rng.sample(WORDS, 2)
        text = f"Write {count} words, one of them {among}, the last {last}."
        yield Task.of(f"request/{held_out}/{k}", text, count=count, among=among, last=last)


CHECKS: tuple[Callable[[dict[str, object], list[str]], bool], ...] = (
    lambda asked, words: len(words) == asked["count"],
    lambda asked, words: asked["among"] in words,
    lambda asked, words: words[-1:] == [asked["last"]],
)


def met(task: Task, episode: Episode) -> float:
    """Share of the constraints that the answer meets, each checked by a rule."""
    words = (episode.answer or "").split()
    return sum(check(task.data, words) for check in CHECKS) / len(CHECKS)


# --- scripts --------------------------------------------------------------------------------------------------------


def adder(task: Task, rng: random.Random) -> Iterator[Say]:
    """Adds in a thought, and answers with the letter of the sum."""
    yield Say(f"<think>{_sums(task.data['numbers'])}</think><answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Thinks or does not, and is right two times in three: when a thought pays has to be found out."""
    thought = _sums(task.data["numbers"]) if rng.random() < 0.5 else ""
    said = task.data["answer"] if rng.random() < 0.5 else rng.choice(LETTERS)
    yield Say(f"<think>{thought}</think><answer>{said}</answer>")


def _sums(numbers: Sequence[int]) -> str:
    return " ".join(str(sum(numbers[: k + 1])) for k in range(1, len(numbers)))


def writer(task: Task, rng: random.Random) -> Iterator[Say]:
    """Previews the constraints, writes words that meet them, and checks them."""
    yield _written(task, task.data["count"], task.data["among"], task.data["last"], rng)


def scribbler(task: Task, rng: random.Random) -> Iterator[Say]:
    """The same, but it meets each constraint only two times in three."""
    own = task.data["count"] if rng.random() < 0.67 else rng.randint(2, 4)
    among, last = (task.data[key] if rng.random() < 0.67 else rng.choice(WORDS) for key in ("among", "last"))
    yield _written(task, own, among, last, rng)


def _written(task: Task, count: int, among: str, last: str, rng: random.Random) -> Say:
    words = [among, *(rng.choice(WORDS) for _ in range(count - 2)), last]
    found = "".join("x-"[not check(task.data, words)] for check in CHECKS)
    preview = f"{task.data['count']} {task.data['among']} {task.data['last']}"
    return Say(f"<think>{preview}: {' '.join(words)}: {found}</think><answer>{' '.join(words)}</answer>")
