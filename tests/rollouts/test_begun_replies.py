"""Replies that the agent begins (`session.generate(begin=...)`): their tokens, records, forks and credit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.api.forks.fork import fork
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.api.run_dirs import EpisodesMissing, require_whole
from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.credit import Hindsight, InformationGain
from agentrl.engines.asking import AskingEngine
from agentrl.engines.openai import OpenAIEngine
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.integrations.trl.datasets import _pair
from agentrl.rewards import Span
from agentrl.rewards.spans import placed
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.hindsight import HindsightScorer
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.training.batch.privileged import Privileged
from agentrl.training.stages.runs import is_of
from agentrl.training.stages.runs import samples_of as stage_samples
from agentrl.training.supervised.preferences import mismatched
from agentrl.types.engine import Completion
from agentrl.types.episode import Episode
from agentrl.types.sample import learned_samples, training_samples, untrained_samples
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.rollouts.world import collect, make_context, make_parts, specs
from tests.sound import assert_sound

CALL = '<tool_call>\n{"name": "add", "arguments": {"by": '
CODE = f'''
from pathlib import Path
from agentrl import Agent, Environment, Say, Task, Tool, ToolResult, tool

CALL = {CALL!r}
HERE = Path(__file__).parent

def tasks(n=2):
    for k in range(n):
        yield Task.of(f"t{{k}}", "Count to 5.")

class Counter(Tool):
    async def open(self, task, sandbox):
        self.count = 0
    @tool
    async def add(self, by: int) -> ToolResult:
        "Count on."
        self.count += by
        return ToolResult(str(self.count), done=self.count >= 5)

class Saved(Counter, Environment):
    def save(self):
        return self.count
    async def restore(self, state):
        self.count = state

class Begins(Agent):
    """Begins every reply but the second with a call; or the first with a name; or those of the trunk alone."""
    forks = 1
    def __init__(self, fork: bool = False, begins: str = "calls") -> None:
        self.fork, self.begins = fork, begins
    async def run(self, session):
        self.trunk = session
        await self.play(session)
        if self.fork and session.forks_left:
            async with session.fork(3) as other:
                await self.play(other)
    async def play(self, session):
        while session.outcome is None:
            await session.run_tools(await session.generate(begin=self.beginning(session, len(session.turns))))
    def beginning(self, session, at):
        if self.begins == "names":
            return "" if at else session.rng.choice(["Alpha: ", "Be: "])
        if self.begins == "trunk":
            return "A: " if session is self.trunk else ""
        return "" if at == 1 else (HERE / "begin").read_text() if (HERE / "begin").exists() else CALL

def whole(task, rng):
    while True:
        yield Say(calls=[("add", {{"by": 1}})])

def reached(task, episode):
    return float(len(episode.turns))

def counts(task, rng):
    """Says what follows the beginning."""
    yield Say("1}}}}\\n</tool_call>")
    yield Say(calls=[("add", {{"by": 1}})])
    while True:
        yield Say("1}}}}\\n</tool_call>")
'''
RECIPE = """\
name: begun
tasks: ./task.py:tasks
tools: [./task.py:%s]
agent: ./task.py:Begins
rewards: {reached: ./task.py:reached}
scripts: {counts: ./task.py:counts, whole: ./task.py:whole}
credit: grpo
"""


def play(tmp_path: Path, tool: str = "Counter", script: str = "counts", n: int = 2, **overrides: Any) -> Run:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE % tool)
    run = rollout(tmp_path, n, group_size=1, script=script, overrides=overrides, out=tmp_path / "run", reporters=())
    assert_sound(run.path)
    return run


def pieces(episode: Episode) -> list[tuple[str, str]]:
    decode = ByteTokenizer().decode
    return [(node.kind, decode(node.token_ids)) for node in episode.nodes if node.kind in ("begun", "sampled")]


def test_a_turn_has_both_texts_and_trains_its_own_tokens(tmp_path: Path) -> None:
    episode = play(tmp_path).episode("t0#0")
    assert [turn.text for turn in episode.turns] == [f"{CALL}1}}}}\n</tool_call>"] * 5
    assert [(call.outcome, call.arguments) for turn in episode.turns for call in turn.calls] == [("ok", {"by": 1})] * 5
    end = "1}}\n</tool_call><|im_end|>"
    begun = [("begun", CALL), ("sampled", end)]
    assert pieces(episode) == [*begun, ("sampled", CALL + end), *begun * 3]
    (row,) = training_samples(episode, [1.0] * 5)
    trained = [token for token, own in zip(row.token_ids, row.loss_mask, strict=True) if own]
    assert ByteTokenizer().decode(trained) == end + CALL + end * 4


@pytest.mark.parametrize("history", ["as_sampled", "as_template"])
def test_the_next_prompt_holds_the_beginning(tmp_path: Path, history: str) -> None:
    episode = play(tmp_path, **{"agent.history": history}).episode("t0#0")
    prompts = [ByteTokenizer().decode(Trajectory(episode.nodes).before(turn.node)) for turn in episode.turns]
    assert [prompt.count(f"{CALL}1}}}}\n</tool_call>") for prompt in prompts] == [0, 1, 2, 3, 4]
    assert not any(prompt.endswith(CALL) for prompt in prompts), "what begins the reply is no part of its prompt"
    assert (episode.branches, episode.drift) == ([], [])


@pytest.mark.parametrize("tool", ["Counter", "Saved"])
@pytest.mark.parametrize("turn", [2, 3])
def test_a_fork_repeats_the_beginnings(tmp_path: Path, tool: str, turn: int) -> None:
    run = play(tmp_path, tool)
    parent = run.episode("t0#0")
    for each in fork(run, parent.id, turn, 2, out=tmp_path / "forks", reporters=()).whole_episodes():
        assert [(one.kind, one.token_ids) for one in each.nodes if one.kind == "begun"] == [
            (one.kind, one.token_ids) for one in parent.nodes if one.kind == "begun"
        ]
        assert [one.text for one in each.turns] == [one.text for one in parent.turns]
    assert_sound(tmp_path / "forks")


def test_a_live_fork_repeats_them(tmp_path: Path) -> None:
    run = play(tmp_path, "Saved", **{"agent.fork": True})
    trunk, other = run.episode("t0#0"), run.episode("t0#0.1")
    assert [turn.text for turn in other.turns] == [turn.text for turn in trunk.turns]
    assert [kind for kind, _ in pieces(other)] == ["begun"] * 2 + ["begun", "sampled"] * 2, "it sampled two turns"


def test_a_live_fork_may_begin_its_own_turns_otherwise(tmp_path: Path) -> None:
    run = play(tmp_path, "Saved", "whole", **{"agent.fork": True, "agent.begins": "trunk"})
    other = run.episode("t0#0.1")
    assert [kind for kind, _ in pieces(other)] == ["begun"] * 3 + ["sampled"] * 2
    assert len(learned_samples(other)) == 1, "what began the turn that is replaced is gone"


def test_another_beginning_is_a_difference(tmp_path: Path) -> None:
    run = play(tmp_path)
    (tmp_path / "begin").write_text("So: ")
    forks = fork(run, "t0#0", 3, 2, out=tmp_path / "forks", reporters=())
    with pytest.raises(EpisodesMissing, match="turn 0: the beginning of the reply: recorded is .*played back 'So: '"):
        require_whole(forks.path)


def test_a_replay_gives_the_same_record(tmp_path: Path) -> None:
    run = play(tmp_path)
    again = rollout(tmp_path, 2, group_size=1, replay=run.path, out=tmp_path / "again", reporters=())
    assert [pieces(each) for each in again.whole_episodes()] == [pieces(each) for each in run.whole_episodes()]


async def test_spans_find_the_tokens_behind_the_beginning(tmp_path: Path) -> None:
    episode = play(tmp_path).episode("t0#0")
    turn, size = episode.turns[0], len(CALL)
    spans = [Span(0, 3, 1.0), Span(size - 2, size + 1, 2.0), Span(size + 1, size + 3, 4.0)]
    found = placed("it", spans, episode, turn, ByteTokenizer().decode).spans
    assert [(span.first, span.last) for span in found] == [(0, -1), (0, 0), (1, 2)]
    assert [span.value for span in found] == [1.0, 2.0, 4.0]


RENDERER = Renderer(ByteTokenizer(), parser_named("hermes", []), [])


def test_a_stage_trains_the_sampled_tokens(tmp_path: Path) -> None:
    """Nothing is tokenised again, and what the agent wrote does not train."""
    episode = msgspec.structs.replace(play(tmp_path).episode("t0#0"), trainable=True)
    assert is_of(episode, RENDERER)
    trained = sum(int(row.loss_mask.sum()) for row in stage_samples(episode, RENDERER))
    assert trained == sum(len(node.token_ids) for node in episode.nodes if node.kind == "sampled")


def test_a_reward_model_reads_its_reference_before_the_reply(tmp_path: Path) -> None:
    episode = play(tmp_path).episode("t0#0")
    episode = msgspec.structs.replace(episode, task=msgspec.structs.replace(episode.task, data={"answer": "5"}))
    privileged, samples = Privileged(RENDERER, "answer"), untrained_samples(episode)
    (shown,) = privileged.shown(samples, [episode])
    text = ByteTokenizer().decode(shown.token_ids.tolist())
    assert text.index(" 5<|im_end|>") < text.index(CALL)
    hidden = privileged.hidden(samples, [shown.token_ids.astype(np.float64)])
    assert hidden[0].astype(int).tolist() == samples[0].token_ids.tolist()


def test_pairs_part_before_what_the_agent_began(tmp_path: Path) -> None:
    run = play(tmp_path, script="whole", n=8, **{"agent.begins": "names"})
    episodes = list(run.whole_episodes())
    alpha, be = (next(each for each in episodes if each.turns[0].text.startswith(name)) for name in ("Alpha: ", "Be: "))
    decode = ByteTokenizer().decode
    pair = _pair(alpha, be)
    assert decode(pair["prompt_ids"]).endswith("assistant\n")
    assert [decode(pair[f"{side}_ids"])[:4] for side in ("chosen", "rejected")] == ["Alph", "Be: "]
    assert sum(pair["chosen_mask"][: len("Alpha: ")]) == 0
    followed = mismatched([learned_samples(alpha)[0], learned_samples(be)[0]])
    assert [name in decode(row.token_ids.tolist()) for row in followed for name in ("Alpha: ", "Be: ")] == [
        False, True, True, False,
    ]  # fmt: skip


class Tight(ScriptedEngine):
    """Checks the context where it scores, as engines of models do."""

    async def score(self, prefix: Any, continuations: Any, at: Any = None) -> list[list[float]]:
        assert all(start + len(each) <= self.max_context for each, start in zip(continuations, at, strict=True))
        return [[-1.0] * len(each) for each in continuations]


@pytest.mark.parametrize("begin", ["<think>\nS", "So: I am going to say that ", ""])
@pytest.mark.parametrize("scorer", ["answer_scorer", "hindsight"])
async def test_a_turn_that_fits_can_be_scored(tmp_path: Path, begin: str, scorer: str) -> None:
    parts = make_parts(tmp_path, agent={"use": f"{__name__}:Talks", "begin": begin})
    renderer = parts.renderer(Opening())
    scorers = {"answer_scorer": AnswerScorer(InformationGain()), "hindsight": HindsightScorer(Hindsight())}

    async def played(room: int) -> Episode:
        engine = Tight(says_yes, renderer, renderer.parser)
        engine.max_context = room
        context = replace(parts.context(engine, renderer, None), **{scorer: scorers[scorer]})
        task = Task.of("t", "Go.", answer="word " * 20)
        (episode,) = await collect(context, [EpisodeSpec("g#0", "g", task, split="train")])
        return episode

    low, high = 0, 5000
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if (await played(middle)).turns else (middle + 1, high)
    assert (await played(low)).status == "done"


class Opening(ByteTokenizer):
    """Its template opens a thought."""

    def render(self, messages: Any, tools: Any, generation: bool) -> str:
        return super().render(messages, tools, generation) + ("<think>\n" if generation else "")


class Talks(ToolAgent):
    def __init__(self, begin: str) -> None:
        self.begin = begin

    async def run(self, session: Any) -> None:
        await session.generate(begin=self.begin)
        session.finish("answer", "word " * 300)


@pytest.mark.parametrize(
    ("begin", "tokens"),
    [
        ("So", "\n</think>\n\nSo"),  # the reply proper: the thought is closed
        ("<think>\nSo", "So"),  # the thought itself
        ("So</think>", "So</think>"),  # a whole thought
    ],
)
def test_a_thought_that_the_template_opens(begin: str, tokens: str) -> None:
    renderer = Renderer(Opening(), parser_named("hermes", []), [])
    prompt = renderer.start([{"role": "user", "content": "Go."}])
    assert renderer.opened_by(prompt) == "<think>"
    assert renderer.tokenizer.decode(renderer.begin(begin, prompt)) == tokens


def test_a_prompt_with_fewer_images_keeps_the_beginning() -> None:
    """The thread renders such a prompt again, with the tokens of all replies."""
    thread = Thread(Trajectory())
    thread.restart([{"role": "user", "content": "Go."}])
    prompt = thread.begin(thread.prompt(RENDERER), [*b"So"])
    said = Completion(token_ids=[*b" be it", 257], logprobs=[0.0] * 7, finish="stop", versions=[])
    thread.reply(prompt, said, "So be it")
    thread.add([{"role": "user", "content": "And?"}])
    assert thread._retold(RENDERER) == thread.prompt(RENDERER).tokens


def says_yes(task: Any, rng: Any) -> Any:
    yield Say("yes")


class OfMessages(ScriptedEngine):
    """Answers messages, like an API."""

    continues = False


class Begins(ToolAgent):
    async def run(self, session: Any) -> None:
        await session.generate(begin="So: ")


async def test_an_engine_that_answers_messages_cannot_continue_a_reply(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "tests.rollouts.test_begun_replies:Begins"})
    context = make_context(parts, says_yes, OfMessages)
    failures: list[dict[str, Any]] = []
    (episode,) = await collect(context, specs(1), failures=failures)
    assert (episode.status, episode.reward) == ("user_error", None)
    assert "scripted answers messages, and cannot continue a reply that begins with 'So: '" in str(failures)
    assert not OpenAIEngine.continues
    assert not AskingEngine.continues
