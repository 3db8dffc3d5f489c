"""Replies that the agent begins (`session.generate(begin=...)`): their tokens, records, forks and credit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.api.forks.fork import fork
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.api.run_dirs import EpisodesMissing, require_whole
from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rewards import Span
from agentrl.rewards.spans import placed
from agentrl.rollouts.agent import ToolAgent
from agentrl.types.engine import Completion
from agentrl.types.episode import Episode
from agentrl.types.sample import training_samples
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
    """Begins every reply but the second."""
    forks = 1
    def __init__(self, fork: bool = False) -> None:
        self.fork = fork
    async def run(self, session):
        await self.play(session)
        if self.fork and session.forks_left:
            async with session.fork(3) as other:
                await self.play(other)
    async def play(self, session):
        while session.outcome is None:
            at = len(session.turns)
            begin = "" if at == 1 else (HERE / "begin").read_text() if (HERE / "begin").exists() else CALL
            await session.run_tools(await session.generate(begin=begin))

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
scripts: {counts: ./task.py:counts}
credit: grpo
"""


def play(tmp_path: Path, tool: str = "Counter", **overrides: Any) -> Run:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE % tool)
    run = rollout(tmp_path, 2, group_size=1, script="counts", overrides=overrides, out=tmp_path / "run", reporters=())
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


def renderer_that_opens_a_thought() -> Renderer:
    class Opening(ByteTokenizer):
        def render(self, messages: Any, tools: Any, generation: bool) -> str:
            return super().render(messages, tools, generation) + ("<think>\n" if generation else "")

    return Renderer(Opening(), parser_named("hermes", []), [])


@pytest.mark.parametrize(
    ("begin", "tokens"),
    [
        ("So", "\n</think>\n\nSo"),  # the reply proper: the thought is closed
        ("<think>\nSo", "So"),  # the thought itself
        ("So</think>", "So</think>"),  # a whole thought
    ],
)
def test_a_thought_that_the_template_opens(begin: str, tokens: str) -> None:
    renderer = renderer_that_opens_a_thought()
    prompt = renderer.start([{"role": "user", "content": "Go."}])
    assert renderer.opened_by(prompt) == "<think>"
    assert renderer.tokenizer.decode(renderer.begin(begin, prompt)) == tokens


def test_a_prompt_with_fewer_images_keeps_the_beginning() -> None:
    """Such a prompt is put together anew from the tokens of the replies."""
    renderer = Renderer(ByteTokenizer(), parser_named("hermes", []), [])
    thread = Thread(Trajectory())
    thread.restart([{"role": "user", "content": "Go."}])
    prompt = thread.begin(thread.prompt(renderer), [*b"So"])
    said = Completion(token_ids=[*b" be it", 257], logprobs=[0.0] * 7, finish="stop", versions=[])
    thread.reply(prompt, said, "So be it")
    thread.add([{"role": "user", "content": "And?"}])
    assert thread._retold(renderer) == thread.prompt(renderer).tokens


def says_yes(task: Any, rng: Any) -> Any:
    yield Say("yes")


class OfMessages(ScriptedEngine):
    """Answers messages, like an API."""

    reads_messages = True


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
