"""Videos of a thief: in one frame the coat can be seen, and all others say how far away and which way that frame is."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl import Environment, Message, Observation, Reply, Say, Task
from agentrl.types.episode import Episode

LENGTH, SIDE = 8, 16
"""Frames of a video, and pixels of a frame, each way."""

COATS = {"red": (230, 30, 30), "green": (20, 150, 60), "blue": (30, 60, 200)}
BACK, ON, AGO = (0, 0, 0), (240, 200, 20), (150, 40, 160)
EVIDENCE, CONTEXT = 5, 3
"""Scores of the frame that shows the coat, and of the frames beside it; all others have 1."""

FORM = re.compile(
    r"<score>.*?</score>\s*<think>.*?</think>\s*<clip>(?P<clip>.*?)</clip>\s*<answer>(?P<answer>.*?)</answer>",
    re.DOTALL,
)


def videos(n: int = 1024, shown: str = "frames", seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` videos, each with the score of every frame as evidence.

    Args:
        shown: `words`, `frames` or `both`: what a frame is shown as.
        held_out: seeds that are kept for evaluation.
    """
    for number in range(n):
        rng = random.Random(f"{seed}/{held_out}/{number}")
        at, coat = rng.randrange(LENGTH), rng.choice(list(COATS))
        scores = [EVIDENCE if k == at else CONTEXT if abs(k - at) == 1 else 1 for k in range(LENGTH)]
        floor = [rng.randint(190, 250) for _ in range(3)]
        yield Task.of(f"video{seed}-{number}", [], at=at, coat=coat, floor=floor, scores=scores, shown=shown)


class Video(Environment):
    """A video to look into: a reply scores the frames that it was shown, and fetches others or answers.

    `info` holds the frames and their scores turn by turn, and the answer.

    Args:
        first: frames that are shown at first, evenly spaced.
        more: frames that a turn may fetch; of more, evenly spaced ones.
    """

    def __init__(self, first: int = 2, more: int = 2) -> None:
        self.first, self.more = first, more

    def open(self, task: Task, sandbox: Any) -> None:
        self.data = task.data
        self.info = {"shown": [_spread(range(LENGTH), self.first)], "scored": [], "answer": ""}

    def opening(self) -> Message:
        text, images = self._view()
        asked = f"Which coat does the thief wear: {', '.join(COATS)}? There are frames 0 to {LENGTH - 1}.\n{text}"
        return {"role": "user", "content": [asked, *({"type": "image", "image": image} for image in images)]}

    def respond(self, reply: Reply) -> Observation:
        """Shows the frames that a reply fetches. One that fetches none, or known ones only, ends the episode."""
        frames = self.info["shown"]
        known = set(itertools.chain(*frames))
        scored = {frame: score for frame, score in _scores(reply.text).items() if frame in frames[-1]}
        new = _spread([frame for frame in _clips(reply.text) if frame not in known], self.more)
        self.info = {
            "shown": [*frames, new] if new else frames,
            "scored": [*self.info["scored"], [*scored.items()]],
            "answer": reply.answer or "",
        }
        text, images = self._view()
        return Observation(text, images=images) if new else Observation("", done=True, answer=reply.answer)

    def _view(self) -> tuple[str, list[Any]]:
        """The frames of this turn, as the task shows them."""
        frames, shown = self.info["shown"][-1], self.data["shown"]
        lines = [f"{k}: {described(self.data, k)}" if shown != "frames" else f"{k}:" for k in frames]
        return "\n".join(lines), [drawn(self.data, k) for k in frames] if shown != "words" else []


def described(data: dict[str, Any], frame: int) -> str:
    """A frame of a video in words."""
    far = data["at"] - frame
    if not far:
        return f"a {data['coat']} coat"
    seen = "a back" if abs(far) == 1 else "nobody"
    return f"{seen}, {abs(far)} {'on' if far > 0 else 'ago'}"


def drawn(data: dict[str, Any], frame: int) -> Any:
    """A frame of a video, as a PIL image: a bar whose colour and height are a way and a distance, and who is there."""
    from PIL import Image

    far, half = data["at"] - frame, SIDE // 2
    image = Image.new("RGB", (SIDE, SIDE), tuple(data["floor"]))
    image.paste(ON if far > 0 else AGO, (0, 0, half, 2 * abs(far)))
    if abs(far) <= 1:
        image.paste(BACK if far else COATS[data["coat"]], (half, 0, SIDE, SIDE))
    return image


def _spread(frames: Sequence[int], most: int) -> list[int]:
    """At most `most` frames, evenly spaced."""
    return list(frames[:: max(1, -(-len(frames) // most))])


def _inside(text: str, tag: str) -> str:
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def _scores(text: str) -> dict[int, int]:
    """The score of each frame that a reply names."""
    return {int(frame): int(score) for frame, score in re.findall(r"\b(\d): ?(\d)\b", _inside(text, "score"))}


def _clips(text: str) -> list[int]:
    """The frames of a video that a reply wants to see."""
    spans = re.findall(r"\b(\d)(?:-(\d))?\b", _inside(text, "clip"))
    wanted = {frame for first, last in spans for frame in range(int(first), int(last or first) + 1)}
    return sorted(frame for frame in wanted if frame < LENGTH)


# --- rewards --------------------------------------------------------------------------------------------------------


def right(task: Task, info: dict[str, Any]) -> float:
    """1 for the colour of the coat."""
    return float(info["answer"].strip() == task.data["coat"])


def form(episode: Episode) -> float:
    """1 if the last reply has all four parts, and either fetches or answers."""
    found = FORM.search(episode.turns[-1].text) if episode.turns else None
    return float(found is not None and bool(found["clip"].strip()) != bool(found["answer"].strip()))


def named(task: Task, info: dict[str, Any]) -> float:
    """Mean over the turns: how far the frames that were scored as evidence, else as context, are those that are.

    Intersection over union. Turns in which neither the scores nor the frames have any are left out.
    """
    found = [_overlap(task.data["scores"], *turn) for turn in zip(info["shown"], info["scored"], strict=False)]
    rated = [each for each in found if each is not None]
    return sum(rated) / len(rated) if rated else 0.0


def _overlap(scores: Sequence[int], shown: Sequence[int], scored: Sequence[Sequence[int]]) -> float | None:
    for least in (EVIDENCE - 1, CONTEXT):
        true = {frame for frame in shown if scores[frame] >= least}
        said = {frame for frame, score in scored if score >= least}
        if (true and said) if least > CONTEXT else (true or said):
            return len(true & said) / len(true | said)
    return None


def fetched(task: Task, info: dict[str, Any], *, more: int = 2) -> float:
    """Mean over the fetches: share of the evidence, else of the context, unseen before, that was fetched.

    Without a fetch it is `named`.

    Args:
        more: frames that a turn may fetch.
    """
    scores, shown, found = task.data["scores"], info["shown"], list[float]()
    for turn in range(1, len(shown)):
        unseen = set(range(len(scores))) - set(itertools.chain(*shown[:turn]))
        found.append(_share(scores, unseen, set(shown[turn]), more))
    return sum(found) / len(found) if found else named(task, info)


def _share(scores: Sequence[int], unseen: set[int], new: set[int], most: int) -> float:
    for least in (EVIDENCE - 1, CONTEXT):
        true = {frame for frame in unseen if scores[frame] >= least}
        if true & new:
            return len(true & new) / min(len(true), most)
    return 0.0


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Fetches the frame that shows the coat, unless it is there, and answers."""
    at, scores, first = task.data["at"], task.data["scores"], _spread(range(LENGTH), 2)
    if at not in first:
        yield _said(scores, first, "Not yet.", clip=str(at))
    yield _said(scores, first if at in first else [at], "There.", answer=task.data["coat"])


def _said(scores: Sequence[int], shown: Sequence[int], thought: str, clip: str = "", answer: str = "") -> Say:
    rated = ", ".join(f"{frame}: {scores[frame]}" for frame in shown if scores[frame] >= CONTEXT)
    return Say(f"<score>{rated}</score><think>{thought}</think><clip>{clip}</clip><answer>{answer}</answer>")


def wild(task: Task, rng: random.Random) -> Iterator[Say]:
    """Scores, fetches and answers at random."""
    while True:
        scores = [rng.randint(1, 5) for _ in range(LENGTH)]
        if rng.random() < 0.5:
            yield _said(scores, range(LENGTH), "Maybe.", clip=str(rng.randrange(LENGTH)))
        else:
            yield _said(scores, range(LENGTH), "Maybe.", answer=rng.choice(list(COATS)))


def empty(task: Task, rng: random.Random) -> Iterator[Say]:
    """Says nothing."""
    while True:
        yield Say("")
