"""A run, or one of its episodes, as text that `view.terminal.write` prints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentrl.chat.formats.parser import signature_lines
from agentrl.store import rescored
from agentrl.store.codec import StoredCredit
from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.store.rescored import Rescore
from agentrl.types.episode import MAIN, POLICY, Branch, CallRecord, Context, Episode, GateVerdict, Node, Turn
from agentrl.types.errors import StoreError, nearest
from agentrl.types.figures.of_episodes import earned
from agentrl.types.figures.sums import total
from agentrl.types.parts.content import line_of, text_of, with_images
from agentrl.types.task import Message
from agentrl.view.summary import StageSummary, summarise
from agentrl.view.terminal import Unwrapped

LONGEST, HEAD, TAIL = 3000, 1500, 500
"""Characters: maximum length of a text shown whole, and lengths of the beginning and end of a longer one."""


def folded(text: str) -> str:
    """The text, without its middle if it is long."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:HEAD]}\n[{len(text) - HEAD - TAIL} characters; --whole shows them]\n{text[-TAIL:]}"


def repeated(messages: Sequence[Mapping[str, Any]], opening: Sequence[Mapping[str, Any]]) -> int:
    """Returns the length of the common prefix of a prompt and `opening`, in messages."""
    pairs = zip(messages, opening, strict=False)
    return next((k for k, (new, old) in enumerate(pairs) if new != old), min(len(messages), len(opening)))


Decode = Callable[[int], str]
PromptOf = Callable[[Iterable[Message]], Iterator[RenderableType]]

STATUS_STYLE = {"done": "green", "truncated": "yellow", "infra_error": "red", "user_error": "bold red"}
_OUTCOME_STYLE = {
    "ok": "green",
    "error": "yellow",
    "raised": "bold red",
    "timeout": "yellow",
    "unknown": "magenta",
    "malformed": "magenta",
    "skipped": "dim",
}
_BAD_CALLS = {
    "malformed": "malformed",
    "unknown": "of unknown tools",
    "refused": "refused by the tool",
    "timeouts": "timed out",
    "raised": "raised an exception (a bug in the tool)",
}
_TOLD = 3  # exceptions, or kinds of failures, that a summary shows
# Upper bound of the log-probability -> how surprised the policy was by its own token.
_SURPRISE = [(-4.0, "white on red3"), (-1.5, "black on dark_orange"), (-0.4, "black on khaki1"), (0.0, "green")]
_BAR = 12
LIMIT = 20
"""Default number of episodes in a list."""

DEMO = "demo"
"""Split of demonstrations."""


class Choice(TypedDict, total=False):
    """Selection and order of a run's episodes.

    Attributes:
        split: only this one; default: all but demonstrations.
        iteration: as in the ids; the first is 0.
        min_reward, max_reward: bounds, inclusive; with one of them, only scored episodes.
        sort: a column of the index.
        desc: descending.
    """

    status: str | None
    split: str | None
    iteration: int | None
    min_reward: float | None
    max_reward: float | None
    sort: str
    desc: bool
    limit: int


def chosen(run: RunReader, choice: Choice) -> list[EpisodeRow]:
    """Returns the rows of the selected episodes, by default at most 20, by start time.

    Raises:
        StoreError: the column, status or split does not exist.
    """
    status, split = choice.get("status"), choice.get("split")
    _check_choice("status", status, STATUS_STYLE)
    _check_choice("split", split, run.count_by("split"))
    return run.rows(
        status=status,
        split=split,
        but_split=DEMO if split is None else None,
        iteration=choice.get("iteration"),
        min_reward=choice.get("min_reward"),
        max_reward=choice.get("max_reward"),
        order=choice.get("sort", "created_at"),
        descending=choice.get("desc", False),
        limit=choice.get("limit", LIMIT),
    )


def show_run(run: RunReader, **choice: Unpack[Choice]) -> Iterator[RenderableType]:
    """Renders the summary of a run, and a table of the selected episodes.

    Raises:
        StoreError: the column, status or split does not exist.
    """
    rows = chosen(run, choice)
    yield show_summary(run)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("episode", overflow="fold", ratio=1)
    for name, justify in [("status", "left"), ("stop", "left"), ("reward", "right"), ("turns", "right")]:
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("tokens", "seconds", "branches", "drift"):
        table.add_column(name, justify="right", no_wrap=True)
    sort = choice.get("sort", "created_at")
    extra = [] if sort in _LISTED else [sort]
    for name in extra:
        table.add_column(name, justify="right", no_wrap=True)
    values = {name: run.values(name, [row.id for row in rows]) for name in extra}
    table.add_column("answer", overflow="ellipsis", no_wrap=True, max_width=28)
    for row in rows:
        table.add_row(
            Text(row.id),
            Text(row.status, STATUS_STYLE.get(row.status, "")),
            Text(row.error or row.stop),
            _number(row.reward),
            str(row.turns),
            str(row.sampled_tokens),
            f"{row.duration_s:.1f}",
            str(row.branches) if row.branches else Text("-", "dim"),
            Text(str(row.drift), "yellow") if row.drift else Text("-", "dim"),
            *(_value(values[name][row.id]) for name in extra),
            Text(_one_line(row.answer or "")),
        )
    yield table if rows else Text("no episode fits", "dim")
    if len(rows) == choice.get("limit", LIMIT):
        yield Text(f"(the first {len(rows)}; --limit shows more)", "dim")
    if choice.get("split") is None and (hidden := len(run.ids(split=DEMO))):
        yield Text(f"({hidden} demonstrations are not listed; --split {DEMO} shows them)", "dim")


_LISTED = (
    "created_at", "id", "status", "stop", "error", "reward", "turns", "sampled_tokens", "duration_s", "branches",
    "drift", "answer",
)  # fmt: skip
"""Columns of the index that the table has, or, the time, that a table without it is sorted by."""


def _value(value: Any) -> Text:
    """A value that an episode is sorted by."""
    if value is None:
        return Text("-", "dim")
    return Text(f"{value:.3f}" if isinstance(value, float) else _one_line(str(value)))


def show_by_task(run: RunReader, **choice: Unpack[Choice]) -> Iterator[RenderableType]:
    """Renders the summary of a run, and a table of its tasks: the one with the lowest mean reward first.

    Raises:
        StoreError: the status or split does not exist.
    """
    limit = choice.get("limit", LIMIT)
    rows = chosen(run, {**choice, "sort": "created_at", "limit": -1})
    yield show_summary(run)
    by_task: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        by_task.setdefault(row.task_id, []).append(row)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("task", overflow="fold", ratio=1)
    for name in ("episodes", "failed", "mean reward", "least", "most", "turns"):
        table.add_column(name, justify="right", no_wrap=True)
    found: list[tuple[float, str, tuple[RenderableType, ...]]] = []
    for task, own in by_task.items():
        scored = [row.reward for row in own if row.reward is not None]
        mean = total(scored) / len(scored) if scored else math.inf
        least, most = (_number(of(scored)) if scored else Text("-", "dim") for of in (min, max))
        turns = total([float(row.turns) for row in own]) / len(own)
        cells = Text(task), str(len(own)), str(len(own) - len(scored)), _number(mean if scored else None), least, most
        found.append((mean, task, (*cells, f"{turns:.1f}")))
    for _, _, row_cells in sorted(found, key=lambda each: each[:2])[:limit]:
        table.add_row(*row_cells)
    yield table if rows else Text("no episode fits", "dim")
    if len(by_task) > limit:
        yield Text(f"(the first {limit} of {len(by_task)} tasks; --limit shows more)", "dim")


def show_summary(run: RunReader) -> RenderableType:
    """Renders the summary of a run."""
    return Unwrapped(_summary(run))


def show_episode(
    run: RunReader, name: str, *, tokens: bool = False, decode: Decode | None = None, whole: bool = False
) -> Iterator[RenderableType]:
    """Renders one episode: tools, messages, calls, results, rewards, credit.

    Args:
        name: the id, or a unique part of it.
        whole: long messages of prompts are not folded.
        tokens: the tokens too, coloured by log-probability.
        decode: token id -> text; without it ids are shown.

    Raises:
        StoreError: no episode matches, or several do.
    """
    episode = run.get(run.resolve(name))
    credit = run.credit(episode.id)
    yield _episode_head(episode, credit, rescored.of_episode(run.path, episode.id))
    prompt_of = partial(_prompt, run, folds=not whole)
    if (offered := run.info.get("tools") if episode.tools is None else episode.tools) is not None:
        yield _tools("tools", offered)
    yield from prompt_of(episode.prompt)
    drift = {item.turn: item for item in episode.drift}
    branches = {item.turn: item for item in episode.branches}
    context = MAIN
    if (why := _no_signal(run, episode, credit)) is not None:
        yield Text(why, "yellow")
    scale = max((abs(value) for value in credit.turn_advantages), default=0.0) if credit else 0.0
    for turn in episode.turns:
        if turn.index == episode.taken and episode.parent is not None:
            yield Rule(Text(f"the turns above were taken from {episode.parent.episode}", "blue"), style="blue")
        if turn.context != context:
            yield from _context(prompt_of, episode, turn)
            context = turn.context
        if turn.index in branches:
            yield from _branch(prompt_of, episode, turn, branches[turn.index])
        if turn.index in drift:
            mark = drift[turn.index]
            yield Rule(Text(f"drift: {mark.kind} at token {mark.at_token}", "yellow"), style="yellow")
        if turn.tools is not None:
            yield _tools("tools from here on", turn.tools)
        yield _turn_head(turn, credit, scale)
        yield Text(turn.text) if turn.text else Text("(empty reply)", "dim")
        if turn.points:
            yield Text(_at(turn.points), "magenta")
        for call in turn.calls:
            yield _call(run, call)
        shown = [with_images(call.result, call.images) for call in turn.calls]
        for message in turn.observations:
            if message.get("content") not in shown:
                yield _message(run, message)
    if episode.error:
        text = f"{episode.error.message}\n{episode.error.traceback}".strip()
        yield Panel(Text(text), title=f"{episode.error.kind} in {episode.error.stage}", border_style="red")
    if tokens:
        yield Rule("tokens")
        for index, node in enumerate(episode.nodes):
            yield _node(index, node, decode)


def _no_signal(run: RunReader, episode: Episode, credit: StoredCredit | None) -> str | None:
    """Says that the group's equal rewards are why no turn has credit; None: some turn has, or the rewards differ."""
    if credit is None or any(credit.turn_advantages):
        return None
    own = run.rows(group_id=episode.group_id)
    rewards = {row.reward for row in own if row.reward is not None}
    if len(rewards) != 1:
        return None
    return f"credit 0: all {len(own)} episodes of the group have reward {rewards.pop():.3g}, which is no signal"


def _prompt(run: RunReader, messages: Iterable[Message], *, folds: bool) -> Iterator[RenderableType]:
    """The messages of a prompt."""
    return (_message(run, message, folds=folds) for message in messages)


def _context(prompt_of: PromptOf, episode: Episode, turn: Turn) -> Iterator[RenderableType]:
    """Renders the line at a change of conversation, and the opening messages of a new one."""
    opened = episode.contexts.get(turn.context)
    yield Rule(Text(f"context {turn.context}{'' if opened is None else _speaker(opened)}", "magenta"), style="magenta")
    first = next(each for each in episode.turns if each.context == turn.context)
    if turn is first and opened is not None:
        if opened.tools is not None:
            yield _tools("tools", opened.tools)
        yield from prompt_of(opened.prompt)


def _speaker(opened: Context) -> str:
    """Returns the speaker of a context; "" for the policy."""
    if opened.policy == POLICY:
        return ""
    return f", {opened.policy}" + ("" if opened.version is None else f" after {opened.version} updates")


def _branch(prompt_of: PromptOf, episode: Episode, turn: Turn, branch: Branch) -> Iterator[RenderableType]:
    """Renders the line where a branch begins, and its messages without those that opened the conversation."""
    yield Rule(Text(f"branch: {branch.reason} at token {branch.at_token}", "blue"), style="blue")
    opened, messages = episode.contexts.get(turn.context), branch.messages or []
    same = repeated(messages, episode.prompt if opened is None else opened.prompt)
    if same:
        yield Text(f"({same} messages as at the beginning)", "dim")
    yield from prompt_of(messages[same:])


def _check_choice(what: str, given: str | None, known: Iterable[str]) -> None:
    if given is not None and given not in (names := list(known)):
        raise StoreError(f"there is no {what} {given!r}", remedy=nearest(given, names))


def signed_bar(value: float, scale: float) -> Text:
    """A bar to the left (pushed down) or to the right (pushed up) of a middle line, with its number."""
    length = round(_BAR * min(1.0, abs(value) / scale)) if scale else 0
    left, right = ("█" * length, "") if value < 0 else ("", "█" * length)
    bar = Text.assemble((f"{left:>{_BAR}}", "red"), ("│", "dim"), (f"{right:<{_BAR}}", "green"))
    return bar.append(f" {value:+.3f}", "bold")


def _summary(run: RunReader) -> Group:
    summary = summarise(run)
    recipe = run.info.get("recipe")
    title = recipe.get("name") if isinstance(recipe, dict) else None
    lines = [Text.assemble((str(title or run.path.name), "bold"), f"  {run.path}")]
    statuses = Text("  ").join(
        Text(f"{count} {name}", STATUS_STYLE.get(name, "")) for name, count in summary.statuses.items()
    )
    lines.append(Text.assemble(f"{summary.episodes} episodes in {summary.groups} groups   ", statuses))
    if summary.mixed_groups:
        lines.append(Text(f"{summary.mixed_groups} groups whose episodes were shown different things first", "yellow"))
    lines += [Text(_stage_line(stage)) for stage in summary.stages]
    for name, split in summary.splits.items():
        if not split.data:
            lines.append(Text(f"{name}: {split.episodes} episodes, all failed: none is scored", "red"))
            continue
        reward = "not scored"
        if split.reward:
            mean, least, most = split.reward
            reward = f"reward mean {mean:.3f}  from {least:.3f} to {most:.3f}"
        failed = (f", {split.episodes - split.data} failed" if split.data < split.episodes else "", "red")
        told = f"  {reward}  {split.turns:.1f} turns an episode"
        lines.append(Text.assemble(f"{name}: {split.episodes} episodes", failed, told))
    if summary.notes:
        told = "  ".join(f"{count} x {kind}" for kind, count in summary.notes.items())
        lines.append(Text(f"rewards of 0 or none: {told}", "yellow"))
    if summary.calls:
        told = "".join(f"  {count} {_BAD_CALLS[what]}" for what, count in summary.bad_calls.items() if count)
        lines.append(Text.assemble(f"{summary.calls} tool calls", (told, "yellow")))
        lines += _some(summary.raised)
    lines.append(Text(f"{summary.sampled_tokens} sampled tokens  {summary.duration_s:.1f} s an episode"))
    if summary.branches or summary.contexts:
        lines.append(Text(f"branches in {summary.branches} episodes, several contexts in {summary.contexts}"))
    lines.append(Text(f"drift in {summary.drift} episodes", "yellow" if summary.drift else "dim"))
    if summary.failures:
        kinds = "  ".join(f"{count} {kind}" for kind, count in summary.failures.items())
        lines.append(Text(f"failures: {kinds}", "red"))
        lines += _some(summary.first_failures)
        if summary.failed:
            lines.append(Text(f"  agentrl show {run.path} EPISODE shows a failed one with its traceback", "dim"))
    if run.damage:
        lines.append(Text(f"damaged records: {', '.join(run.damage[:3])} (see `agentrl check`)", "bold red"))
    return Group(*lines, Text())


def _stage_line(stage: StageSummary) -> str:
    steps = "iterations" if stage.kind == "rl" else "steps"
    shown = f"  {stage.shown} {stage.first:.3f} -> {stage.last:.3f}" if stage.shown else ""
    return f"stage {stage.name}: {stage.kind}, {stage.iteration} {steps}{shown}"


def _some(texts: list[str]) -> list[Text]:
    """The first few, a line each."""
    more = [Text(f"  and {len(texts) - _TOLD} more", "dim")] if len(texts) > _TOLD else []
    return [Text(f"  {text}", "red") for text in texts[:_TOLD]] + more


def _episode_head(episode: Episode, credit: StoredCredit | None, again: Mapping[str, Rescore]) -> Panel:
    head = Text.assemble((episode.status, STATUS_STYLE[episode.status]), f"  {episode.stop}".rstrip())
    head.append("  reward ").append_text(_number(earned(episode)))
    for name, value in episode.components.items():
        head.append(f"  {name} ", "dim").append_text(_number(value))
    if episode.pending:
        head.append(f"  waits for the score of its group: {', '.join(episode.pending)}", "yellow")
    about = [f"group {episode.group_id}", f"task {episode.task.id}", f"{episode.split}, iteration {episode.iteration}"]
    if credit:
        about.append(f"credit by {credit.estimator}" + (f" ({credit.note})" if credit.note else ""))
    lines = [head, Text("  ".join(about), "dim")]
    if episode.answer is not None:
        lines.append(Text(f"answer: {episode.answer}"))
    lines += _why(episode.gates, episode.notes)
    for name, score in again.items():
        line = Text.assemble(f"rewards {name!r}: reward ", _number(score.total))
        for component, value in score.components.items():
            line.append(f"  {component} ", "dim").append_text(_number(value))
        sums = {name for turn in score.turns for name in turn}
        for component in sorted(sums):
            total = sum(turn.get(component) or 0.0 for turn in score.turns)
            line.append(f"  {component} ", "dim").append_text(_number(total)).append(" over turns", "dim")
        lines += [line, *_why(score.gates, score.notes)]
    if episode.info:
        lines.append(Text(f"info: {json.dumps(episode.info, ensure_ascii=False)}"))
    times = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in episode.timings.items())
    if times:
        lines.append(Text(f"seconds: {times}", "dim"))
    return Panel(Group(*lines), title=Text(episode.id, "bold"), title_align="left")


def _why(gates: list[GateVerdict], notes: Mapping[str, str]) -> list[Text]:
    """Renders the verdicts of gates, and the notes of components."""
    lines = [Text(f"gate {gate}", "" if gate.open else "yellow") for gate in gates]
    return lines + [Text(f"{name}: {note}", "dim") for name, note in notes.items()]


def _turn_head(turn: Turn, credit: StoredCredit | None, scale: float) -> Text:
    head = Text.assemble((f"\n● turn {turn.index}", "bold cyan"), f" {turn.agent}" if turn.agent != "agent" else "")
    if credit and turn.index < len(credit.turn_advantages):
        head.append("  ").append_text(signed_bar(credit.turn_advantages[turn.index], scale))
        parts = "  ".join(f"{name} {values[turn.index]:+.3f}" for name, values in credit.parts.items())
        head.append(f"  {parts}", "dim")
    for name, value in turn.rewards.items():
        head.append(f"  {name} ", "dim").append_text(_number(value))
    if turn.reward is not None and turn.reward != sum(value or 0.0 for value in turn.rewards.values()):
        head.append("  counts ", "dim").append_text(_number(turn.reward))
    for span in turn.spans:
        head.append(f"\n    {span.component} ", "dim").append_text(_number(span.value))
        head.append(f"  {turn.text[span.start : span.end]!r}", "dim")
    if turn.usage is not None:
        head.append(f"  {turn.usage.prompt_tokens}+{turn.usage.completion_tokens} tokens, {turn.usage.cost:.4g}", "dim")
    if turn.queue_s is not None or turn.decode_s is not None:
        times = {"queued": turn.queue_s, "decoded": turn.decode_s}
        told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items() if seconds is not None)
        head.append(f"  {told}", "dim")
    if turn.finish != "stop":
        head.append(f"  [{turn.finish}]", "yellow")
    return head


def _tools(title: str, definitions: list[dict[str, Any]]) -> Text:
    """Renders tool signatures, one per line, without descriptions."""
    functions = [{"function": {**each["function"], "description": ""}} for each in definitions]
    lines = [line for line in signature_lines(functions).splitlines() if line.startswith("- ")]
    return Text.assemble((f"{title}:", "bold blue"), "\n  ", "\n  ".join(lines) or "none")


def _message(run: RunReader, message: dict[str, Any], *, folds: bool = False) -> Text:
    text = text_of(message.get("content"), lambda part: f"\n{_image(run, part)}\n").strip("\n")
    text = folded(text) if folds else text
    return Text.assemble((f"{message.get('role', '?')}: ", "bold blue"), text)


def _image(run: RunReader, part: Mapping[str, Any]) -> str:
    """An image in a line, without its pixels."""
    try:
        size = len(run.get_blob(str(part.get("blob"))))
    except StoreError:
        size = None
    return line_of(part, size)


def _call(run: RunReader, call: CallRecord) -> Text:
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    called = f"({arguments})  " if call.outcome != "malformed" else "a call that could not be read  "
    text = Text.assemble(("  → ", "dim"), (call.name, "bold"), called)
    text.append(call.outcome, _OUTCOME_STYLE[call.outcome]).append(f"  {call.duration_s:.2f} s", "dim")
    text.append(f"{_at(call.points)}\n", "magenta")
    lines = [*call.result.splitlines(), *(_image(run, part) for part in call.images)]
    text.append("\n".join(f"    {line}" for line in lines))
    if call.raised:
        text.append(f"\n    {call.raised}", "red")
    if call.dropped:
        where = f"whole in blobs/{call.blob[:2]}/{call.blob}" if call.blob else "nothing keeps them"
        text.append(f"\n    ({call.dropped} characters cut; {where})", "yellow")
    return text


def _at(points: Iterable[tuple[float, float]]) -> str:
    """Formats the points of an action on the last image."""
    return "".join(f"{'  at' if not k else ' to'} {x:g}, {y:g}" for k, (x, y) in enumerate(points))


def _node(index: int, node: Node, decode: Decode | None) -> Text:
    parent = f" after {node.parent}" if node.parent >= 0 else " root"
    text = Text.assemble((f"node {index}{parent}, {node.kind}, {len(node.token_ids)} tokens", "bold"))
    if node.logprobs:
        versions = ", ".join(str(span.version) for span in node.versions)
        text.append(f", mean log-prob {sum(node.logprobs) / len(node.logprobs):.3f}, version {versions}")
    text.append("\n  ")
    for at, token in enumerate(node.token_ids):
        shown = decode(token) if decode else f"{token} "
        style = _surprise(node.logprobs[at]) if node.logprobs else "dim"
        text.append(shown, style)
    return text


def _surprise(logprob: float) -> str:
    return next(style for bound, style in _SURPRISE if logprob <= bound or bound == 0.0)


def _number(value: float | None) -> Text:
    if value is None:
        return Text("none", "dim")
    return Text(f"{value:.3f}", "green" if value > 0 else "red" if value < 0 else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
