"""`agentrl check RUN`: verifies a run directory, record by record, starting from the shards."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentrl.store.codec import decode_credit, decode_episode
from agentrl.store.group_scores import decode_group_scores
from agentrl.store.index import blobs_of, row_of
from agentrl.store.lock import is_held
from agentrl.store.openings import REMEDY, Openings, environment_of, lacks_tools
from agentrl.store.reader import RunReader
from agentrl.store.run_dir import RunDir
from agentrl.store.shards import Shards
from agentrl.types.episode import MAIN, Branch, Drift, Episode, Node, gap_in
from agentrl.types.errors import StoreError
from agentrl.types.parts.image import ImageRefused, image_info
from agentrl.types.parts.placeholders import fault_in
from agentrl.types.reporter import Reporter
from agentrl.types.sample import training_samples
from agentrl.types.trajectory import Trajectory

T = TypeVar("T")

FIRST = 5
"""Maximum number of violations listed per invariant."""


@dataclass
class Invariant:
    """One invariant: how often it held, how often it was violated, and the first violations."""

    about: str
    ok: int = 0
    failed: int = 0
    offenders: list[str] = field(default_factory=list)

    def passed(self, count: int = 1) -> None:
        self.ok += count

    def broken(self, offender: str) -> None:
        self.failed += 1
        if len(self.offenders) < FIRST:
            self.offenders.append(offender)

    def take(self, problem: str | None, name: str) -> None:
        """Counts one case: a violation if there is a `problem`."""
        if problem is None:
            self.ok += 1
        else:
            self.broken(f"{name}: {problem}")


@dataclass
class Report:
    """The result of `check`.

    Attributes:
        invariants: the invariants by name.
        notes: findings that are not violations.
    """

    run: str
    episodes: int
    invariants: dict[str, Invariant]
    notes: list[str]

    @property
    def ok(self) -> bool:
        return not any(invariant.failed for invariant in self.invariants.values())

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        held: dict[str, Any] = msgspec.to_builtins(self.invariants)
        return {
            "run": self.run,
            "ok": self.ok,
            "episodes": self.episodes,
            "invariants": held,
            "notes": self.notes,
        }

    def as_text(self) -> str:
        """The report as text: one line per invariant, with its violations below."""
        lines = []
        for name, invariant in self.invariants.items():
            mark = "FAIL" if invariant.failed else "ok"
            lines.append(f"{mark:4}  {name:20} {invariant.ok:8} ok {invariant.failed:6} failed   {invariant.about}")
            lines += [f"        {offender}" for offender in invariant.offenders]
        lines += [f"note  {note}" for note in self.notes]
        lines.append(f"{self.run}: {self.episodes} episodes, {'sound' if self.ok else 'NOT SOUND'}")
        return "\n".join(lines)


_ABOUT = {
    "readable": "every record in the shards can be read",
    "exactly_once": "no episode is stored twice; in a finished run none that was planned is missing",
    "index": "the index has a row for every record, and no other",
    "graph": "parents precede their children, and every turn names the node that holds its tokens",
    "contexts": "every turn names a context, and goes on from the last one there unless a branch is noted",
    "forks": "a fork begins with the turns of its parent, token for token, and with its saved state",
    "tokens": "each turn's sampled tokens are trained exactly once, and no other token is",
    "logprobs": "every sampled token has a log-probability, finite and at most 0",
    "versions": "the version spans of a sampled node cover it without gap or overlap",
    "rewards": "what failed has no reward, what is data and was scored has one",
    "scores": "scores of groups belong to stored episodes and have a number per turn",
    "credit": "credit belongs to a stored episode and has a number per turn",
    "blobs": "every blob that is named is there, whole, and no other",
    "groups": "the episodes of a group were shown one task, unless the recipe says `openings: differ`",
    "images": "images are what their messages say, and placeholder tokens are whole images of their episode",
}


def check(path: str | Path, reporter: Reporter | None = None) -> Report:
    """Checks a run directory without changing it. The run may be written at the same time.

    Args:
        reporter: is told how many records of episodes are checked.

    Raises:
        StoreError: the folder is not a run.
    """
    path = Path(path)
    invariants = {name: Invariant(about) for name, about in _ABOUT.items()}
    notes: list[str] = []
    with RunDir.read(path) as run:
        live = is_held(path / "lock")
        if live:
            notes.append("the run is being written: missing episodes and unnamed blobs are not failures yet")
        turns, blobs, images = _check_episodes(run, invariants, notes, reporter or Reporter())
        _check_planned(run, set(turns), invariants["exactly_once"], notes, live)
        _check_scores(run, turns, invariants, notes)
        _check_credit(run, turns, invariants, notes)
        _check_blobs(run, blobs, invariants["blobs"], live)
        _check_images(run, images, invariants["images"])
        _note_repairs(run, notes)
    return Report(str(path), len(turns), invariants, notes)


def _check_episodes(
    run: RunReader, invariants: dict[str, Invariant], notes: list[str], reporter: Reporter
) -> tuple[dict[str, int], dict[str, str], dict[tuple[str, ...], str]]:
    """Checks all records of the shards. Returns the number of turns of each episode, an episode of each blob, and an
    episode of each image with the image's attributes."""
    indexed = {row.id: row for row in run.rows()}
    turns: dict[str, int] = {}
    pending = 0
    blobs: dict[str, str] = {}
    images: dict[tuple[str, ...], str] = {}
    openings, without_tools = Openings(run), 0
    reporter.phase("checking", len(indexed))
    for number, (place, line) in enumerate(_lines(run.path / "episodes", invariants["readable"], notes), 1):
        reporter.step(number, {})
        try:
            episode = decode_episode(line)
        except msgspec.DecodeError as error:
            invariants["readable"].broken(f"{place}: {error}")
            continue
        invariants["readable"].passed()
        if episode.id in turns:
            invariants["exactly_once"].broken(f"{episode.id}: stored again at {place}")
            continue
        invariants["exactly_once"].passed()
        turns[episode.id] = len(episode.turns)
        blobs.update(dict.fromkeys(blobs_of(episode), episode.id))
        images.update({_said_of(part): episode.id for part in episode.shown_images()})
        scores = run.group_scores(episode.id)
        if scores is not None:
            with suppress(ValueError):  # of another number of turns: `_check_scores` reports that
                episode = scores.of(episode)
        pending += bool(episode.pending)
        row = indexed.pop(episode.id, None)
        if row is None:
            invariants["index"].broken(f"{episode.id}: not in the index")
        else:
            same = row_of(episode, row.location) == row and str(row.location) == place
            invariants["index"].take(None if same else f"the index differs from {place}", episode.id)
        for name, problem_of in _OF_AN_EPISODE.items():
            invariants[name].take(_safely(problem_of, episode), episode.id)
        invariants["groups"].take(_safely(openings.problem, episode), episode.id)
        without_tools += lacks_tools(episode, run.info)
        invariants["forks"].take(_safely(partial(_of_parent, parent=_parent_of(episode, run)), episode), episode.id)
    if invariants["groups"].failed:
        notes.append(f"credit compares the episodes of a group: {REMEDY}")
    if without_tools:
        notes.append(
            f"{without_tools} episodes had no tool to call, although {environment_of(run.info)} or their task declares "
            "some"
        )
    if pending:
        notes.append(f"{pending} episodes wait for the score of their group")
    for id, row in indexed.items():
        invariants["index"].broken(f"{id}: indexed, but not readable at {row.location}")
    return turns, blobs, images


def _lines(folder: Path, readable: Invariant, notes: list[str]) -> Iterator[tuple[str, bytes]]:
    for frame in Shards(folder).scan():
        if frame.data is not None:
            yield from ((str(frame.location), line) for line in frame.data.split(b"\n"))
        elif frame.state == "torn":
            notes.append(f"torn last record: {folder.name}/{frame.location}; the next writer drops it")
        else:
            readable.broken(f"{folder.name}/{frame.location}: damaged, {frame.location.length} bytes")


def _check_planned(run: RunReader, ids: set[str], once: Invariant, notes: list[str], live: bool) -> None:
    planned = run.info.get("planned")
    if planned is None:
        return
    missing = sorted(set(planned) - ids) if isinstance(planned, list) else []
    count = len(missing) if isinstance(planned, list) else max(0, int(planned) - len(ids))
    if count and run.info.get("finished") and not live:
        names = missing or [f"{count} of {planned} planned episodes"]
        for name in names:
            once.broken(f"{name}: missing")
    elif count:
        notes.append(f"{count} planned episodes are not stored yet")


def _decoded(folder: Path, decode: Callable[[bytes], T], readable: Invariant, notes: list[str]) -> Iterator[T]:
    """Iterates over the decodable records of a folder's shards."""
    for place, line in _lines(folder, readable, notes):
        try:
            record = decode(line)
        except msgspec.DecodeError as error:
            readable.broken(f"{folder.name}/{place}: {error}")
        else:
            readable.passed()
            yield record


def _check_scores(run: RunReader, turns: dict[str, int], invariants: dict[str, Invariant], notes: list[str]) -> None:
    for group in _decoded(run.path / "scores", decode_group_scores, invariants["readable"], notes):
        for score in group.scores:
            expected, found = turns.get(score.episode_id), len(score.turns)
            problem = "no such episode" if expected is None else f"{found} turns of {expected}"
            invariants["scores"].take(None if expected == found else problem, score.episode_id)


def _check_credit(run: RunReader, turns: dict[str, int], invariants: dict[str, Invariant], notes: list[str]) -> None:
    for credit in _decoded(run.path / "credit", decode_credit, invariants["readable"], notes):
        expected = turns.get(credit.episode_id)
        lengths = {len(credit.turn_advantages), *map(len, credit.parts.values())}
        problem = None
        if expected is None:
            problem = "no such episode"
        elif lengths != {expected}:
            problem = f"{sorted(lengths)} numbers for {expected} turns"
        invariants["credit"].take(problem, credit.episode_id)


def _check_blobs(run: RunReader, named: dict[str, str], invariant: Invariant, live: bool) -> None:
    there = {path.name: path for path in run.path.glob("blobs/*/*") if not path.name.startswith(".")}
    for sha, episode in named.items():
        path = there.pop(sha, None)
        if path is None:
            invariant.broken(f"{sha}: missing, named by {episode}")
        else:
            whole = hashlib.sha256(path.read_bytes()).hexdigest() == sha
            invariant.take(None if whole else "its content has another hash", sha)
    for sha in [] if live else sorted(there):
        invariant.broken(f"{sha}: named by no episode")


def _said_of(part: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(part.get(key)) for key in ("blob", "format", "width", "height"))


def _check_images(run: RunReader, images: dict[tuple[str, ...], str], invariant: Invariant) -> None:
    for (blob, *said), episode in images.items():
        try:
            found = image_info(run.get_blob(blob))
        except StoreError:
            continue  # a missing blob is a violation of another invariant
        except ImageRefused as error:
            invariant.broken(f"{blob}: {error.message}, named by {episode}")
            continue
        same = list(map(str, msgspec.structs.astuple(found))) == said
        invariant.take(None if same else f"{episode} says {' '.join(said)}, it is {found}", blob)


def _note_repairs(run: RunReader, notes: list[str]) -> None:
    counts: dict[str, int] = {}
    for repair in run.repairs():
        counts[repair["kind"]] = counts.get(repair["kind"], 0) + int(repair.get("records", 1))
    words = {
        "torn": "torn last records were dropped when the run was resumed",
        "torn_line": "torn last lines of metrics or failures were dropped when the run was resumed",
        "damaged": "damaged records were met when the run was resumed",
        "lost": "indexed records were gone from their shards when the run was resumed",
    }
    notes += [f"{count} {words[kind]}" for kind, count in sorted(counts.items())]


def _safely(problem_of: Callable[[Episode], str | None], episode: Episode) -> str | None:
    """Counts an exception as a violation: a broken graph can make another check raise."""
    try:
        return problem_of(episode)
    except Exception as error:
        return f"cannot be checked: {type(error).__name__}: {error}"


def _parent_of(fork: Episode, run: RunReader) -> Episode | None:
    """The episode of this run that it was forked from, if that can be read."""
    if fork.parent is None or not fork.forked:
        return None
    with suppress(StoreError):
        return run.get(fork.parent.episode)
    return None


def _of_parent(fork: Episode, parent: Episode | None) -> str | None:
    if parent is None:
        return None
    if fork.prompt != parent.prompt:
        return f"it opens otherwise than {parent.id}"
    if len(fork.turns) < fork.taken or len(parent.turns) < fork.taken:
        return f"it takes {fork.taken} turns of {parent.id}, and has {len(fork.turns)} of {len(parent.turns)}"
    # Messages after the last of them may be the fork's own: its agent may have added some.
    for mine, its in zip(fork.turns[: fork.taken], parent.turns, strict=False):
        heard = mine.index < fork.taken - 1 and mine.observations != its.observations
        if heard or Trajectory(fork.nodes).tokens(mine.node) != Trajectory(parent.nodes).tokens(its.node):
            return f"turn {mine.index} differs from that of {parent.id}"
    for mine, its in zip(fork.turns[: fork.taken + 1], parent.turns, strict=False):
        if mine.saved != its.saved:
            return f"the state before turn {mine.index} differs from that of {parent.id}"
    return None


def _sampled(episode: Episode) -> Iterator[tuple[int, Node]]:
    return ((index, node) for index, node in enumerate(episode.nodes) if node.kind == "sampled")


def _graph(episode: Episode) -> str | None:
    for index, node in enumerate(episode.nodes):
        if not -1 <= node.parent < index:
            return f"node {index} has parent {node.parent}"
    sampled = {index for index, node in enumerate(episode.nodes) if node.kind in ("sampled", "spoken")}
    named = [turn.node for turn in episode.turns]
    if episode.nodes and (len(set(named)) < len(named) or set(named) != sampled):
        return f"turns name nodes {named}, sampled are {sorted(sampled)}"
    if [turn.index for turn in episode.turns] != list(range(len(episode.turns))):
        return "turns are not numbered from 0"
    return None


def _contexts(episode: Episode) -> str | None:
    known = {MAIN, *episode.contexts}
    unknown = next((turn for turn in episode.turns if turn.context not in known), None)
    if unknown is not None:
        return f"turn {unknown.index} is of the context {unknown.context!r}, which is not there"
    if silent := episode.contexts.keys() - {turn.context for turn in episode.turns}:
        return f"the context {min(silent)!r} has no turn"
    for turn in episode.turns if episode.nodes else ():
        speaker = episode.policy_of(turn)
        kind = "sampled" if speaker in episode.trained_policies and turn.index >= episode.taken else "spoken"
        if episode.nodes[turn.node].kind != kind:
            who = f"the speaker {speaker!r}" if turn.index >= episode.taken else "the resumed episode"
            return f"turn {turn.index} is of {who}, and its node is {episode.nodes[turn.node].kind}"
    return _forks(episode) if episode.nodes else None


def _forks(episode: Episode) -> str | None:
    forks: dict[int, Drift | Branch] = {drift.turn: drift for drift in episode.drift}
    forks |= {branch.turn: branch for branch in episode.branches}
    count = len(episode.turns)
    if beyond := [turn for turn in forks if not 0 <= turn < count]:
        return f"a branch is noted at turn {beyond[0]} of {count}"
    last: dict[str, int] = {}
    for turn in episode.turns:
        path = episode.path(turn.node)
        at, before = forks.get(turn.index), last.get(turn.context)
        prompt = sum(len(episode.nodes[node].token_ids) for node in path[:-1])
        if at is not None and not 0 <= at.at_token <= prompt:
            return f"turn {turn.index} branches at token {at.at_token} of a prompt of {prompt}"
        if at is None and before is not None and before not in path:
            return f"turn {turn.index} does not go on from the turn before it, and no branch is noted"
        last[turn.context] = turn.node
    return None


def _tokens(episode: Episode) -> str | None:
    if not episode.nodes:
        return None
    seen = (episode.seen_by(policy) for policy in episode.trained_policies)
    rows = [row for each in seen for row in training_samples(each, [0.0] * len(each.turns))]
    trained = sum(int(row.loss_mask.sum()) for row in rows)
    count = sum(len(node.token_ids) for _, node in _sampled(episode))
    if trained != count:
        return f"{trained} trained, {count} sampled"
    spans = [(turn, row.token_ids[start:end].tolist()) for row in rows for turn, start, end in row.turn_spans]
    nodes = [(turn.index, episode.nodes[turn.node]) for turn in episode.turns]
    sampled = [(index, node.token_ids) for index, node in nodes if node.kind == "sampled" and node.token_ids]
    if sorted(span for span in spans if span[1]) != sorted(sampled):
        return "the samples do not hold each turn's tokens once"
    return None


def _logprobs(episode: Episode) -> str | None:
    for index, node in _sampled(episode):
        values = node.logprobs
        if values is None or len(values) != len(node.token_ids):
            return f"node {index} has {len(values or [])} log-probabilities for {len(node.token_ids)} tokens"
        for at, value in enumerate(values):
            if not (math.isfinite(value) and value <= 0):
                return f"node {index}, token {at}: log-probability {value}"
    return None


def _versions(episode: Episode) -> str | None:
    for index, node in _sampled(episode):
        if (gap := gap_in(node.versions, len(node.token_ids))) is not None:
            return f"node {index}: {gap}"
    return None


def _rewards(episode: Episode) -> str | None:
    if episode.status in ("infra_error", "user_error"):
        return None if episode.reward is None else f"{episode.status} with reward {episode.reward}"
    if episode.pending:
        return None if episode.reward is None else f"waits for its group, with reward {episode.reward}"
    scored = any(value is not None for value in episode.components.values())
    return f"{episode.status}, scored, but without a reward" if scored and episode.reward is None else None


def _placeholders(episode: Episode) -> str | None:
    blobs, counts = {part["blob"] for part in episode.shown_images()}, dict[str, int]()
    for index, node in enumerate(episode.nodes):
        if node.kind in ("sampled", "spoken") and min(node.token_ids, default=0) < 0:
            return f"node {index} is sampled, and holds placeholders of an image"
        if (problem := fault_in(node.token_ids, blobs, counts)) is not None:
            return f"node {index}: {problem}"
    return None


_OF_AN_EPISODE: dict[str, Callable[[Episode], str | None]] = {
    "graph": _graph,
    "contexts": _contexts,
    "tokens": _tokens,
    "logprobs": _logprobs,
    "versions": _versions,
    "rewards": _rewards,
    "images": _placeholders,
}
