"""Information gain: the gold answer before every turn, by a real tiny model."""

from __future__ import annotations

import msgspec
import pytest
import torch

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.config.credit import InformationGain
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.errors import CreditError
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.chat.families import gemma4_thinking
from tests.training.make import llama


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(ByteTokenizer(), parser_named("tags", []), [])


@pytest.fixture
async def engine():
    made = TorchEngine(llama(vocab_size=300, max_position_embeddings=512))
    yield made
    await made.close()


def episode(renderer: Renderer, task: Task, begins: int = 0) -> Episode:
    """Three turns; before the last one the context was rewritten, which starts a new branch.

    Args:
        begins: tokens of each reply that the agent begins it with.
    """
    nodes = [Node(parent=-1, kind="prompt", token_ids=renderer.start(task.instruction))]
    turns = []

    def say(text: str) -> None:
        said = renderer.demonstrate(text, nodes[-1].token_ids)
        if begins:
            nodes.append(Node(parent=len(nodes) - 1, kind="begun", token_ids=said[:begins]))
        nodes.append(Node(parent=len(nodes) - 1, kind="sampled", token_ids=said[begins:]))
        turns.append(Turn(index=len(turns), node=len(nodes) - 1, text=text, finish="stop"))

    say("look")
    observed = renderer.extend(nodes[-1].token_ids, [{"role": "user", "content": "seen"}])
    nodes.append(Node(parent=len(nodes) - 1, kind="observation", token_ids=observed))
    say("think")
    nodes.append(Node(parent=-1, kind="prompt", token_ids=renderer.start([{"role": "user", "content": "so far"}])))
    say("say")
    return Episode(id="e", group_id="g", task=task, status="done", nodes=nodes, turns=turns, reward=1.0)


async def scored_by(scorer: AnswerScorer, played: Episode, engine: TorchEngine, renderer: Renderer) -> list[Turn]:
    found = await scorer.score(engine, renderer, played.task, Trajectory(played.nodes), played.turns)
    return [msgspec.structs.replace(turn, gold_logprob=gold) for turn, gold in zip(played.turns, found, strict=True)]


@pytest.mark.parametrize("begins", [0, 2])
async def test_beliefs_equal_plain_forward_passes(renderer: Renderer, engine: TorchEngine, begins: int) -> None:
    task = Task.of("t", "Which city?", answer="Oslo")
    scorer, played = AnswerScorer(InformationGain(lead="It is ")), episode(renderer, task, begins)
    scored = await scored_by(scorer, played, engine, renderer)
    model = llama(vocab_size=300, max_position_embeddings=512)
    for turn in scored:
        prefix = Trajectory(played.nodes).before(turn.node)
        assert renderer.tokenizer.decode(prefix).endswith("assistant\n"), "nothing of the reply"
        said, lead = scorer.continuation(renderer, "Oslo", prefix)
        assert bytes(said[lead:]) == b"Oslo"
        with torch.no_grad():
            logprobs = model(torch.tensor([prefix + said])).logits[0].log_softmax(-1)
        at = len(prefix) + lead
        plain = [logprobs[at + k - 1, token].item() for k, token in enumerate(said[lead:])]
        assert turn.gold_logprob == pytest.approx(sum(plain) / 4, abs=1e-5)
    # All else is as it was.
    assert [msgspec.structs.replace(turn, gold_logprob=None) for turn in scored] == played.turns


async def test_one_call_a_branch_and_no_prompt_again(renderer: Renderer, engine: TorchEngine) -> None:
    task = Task.of("t", "Which city?" * 9, answer="Oslo")
    played, scorer = episode(renderer, task), AnswerScorer(InformationGain())
    calls = []
    score = engine.score

    async def counted(prefix, continuations, at=None):
        calls.append(len(continuations))
        return await score(prefix, continuations, at)

    engine.score = counted  # type: ignore[method-assign]
    before = engine.stats["forwarded_tokens"]
    await scored_by(scorer, played, engine, renderer)
    assert calls == [1, 2]  # two branches; the second holds the first two turns
    answers = 3 * scorer.room(renderer, task, played.nodes[0].token_ids)
    longest = [played.path(turn.node)[:-1] for turn in played.turns[1:]]
    whole = sum(len(played.nodes[node].token_ids) for path in longest for node in path)
    assert engine.stats["forwarded_tokens"] - before <= whole + answers


@pytest.mark.parametrize(
    "data", [{}, {"answer": None}, {"answer": []}, {"answer": ""}, {"answer": True}, {"answer": ["a", ""]}]
)
def test_a_task_without_a_gold_answer_is_named(data: dict) -> None:
    with pytest.raises(CreditError, match=r"task t7: data\['answer'\]") as caught:
        AnswerScorer(InformationGain()).golds(Task.of("t7", "?", **data))
    assert "information_gain" in (caught.value.remedy or "")


def test_gold_answers() -> None:
    scorer = AnswerScorer(InformationGain(answer="gold", at_most=2))
    given = ("Oslo", ["Oslo", "Kristiania", "Christiania"], 42)
    found = [scorer.golds(Task.of("t", "?", gold=gold)) for gold in given]
    assert found == [["Oslo"], ["Oslo", "Kristiania"], ["42"]]


async def test_of_several_gold_answers_the_likeliest_counts(renderer: Renderer, engine: TorchEngine) -> None:
    async def beliefs(*gold: str) -> list[float]:
        played = episode(renderer, Task.of("t", "Which city?", answer=list(gold)))
        scored = await scored_by(AnswerScorer(InformationGain()), played, engine, renderer)
        return [turn.gold_logprob or 0.0 for turn in scored]

    alone = [await beliefs(gold) for gold in ("Oslo", "Kristiania")]
    assert alone[0] != alone[1]
    assert await beliefs("Oslo", "Kristiania") == pytest.approx(
        [max(pair) for pair in zip(*alone, strict=True)], abs=1e-5
    )


async def test_an_answer_stands_behind_the_thought_that_a_prompt_opens() -> None:
    """Gemma 4's template opens one behind results: the answer was scored as a part of it."""
    tokenizer = gemma4_thinking()
    look = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, [look]), [look])
    task, scorer = Task.of("t", "Which city?", answer="Oslo"), AnswerScorer(InformationGain(lead="It is "))
    start = renderer.start(task.instruction)
    call = renderer.demonstrate("<|tool_call>call:look{}<tool_call|>", start)
    seen = renderer.extend(call, [{"role": "tool", "name": "look", "content": "a fjord"}])
    given = [("prompt", start), ("sampled", call), ("observation", seen), ("sampled", renderer.demonstrate("x", seen))]
    nodes = [Node(parent=k - 1, kind=kind, token_ids=ids) for k, (kind, ids) in enumerate(given)]  # type: ignore[arg-type]
    turns = [Turn(index=k, node=2 * k + 1, text="", finish="stop") for k in range(2)]
    asked: list[list[int]] = []

    class Engine:
        async def score(self, prefix: list[int], continuations: list[list[int]], at: list[int]) -> list[list[float]]:
            asked.extend(continuations)
            return [[-1.0] * len(one) for one in continuations]

    scored = await scorer.score(Engine(), renderer, task, Trajectory(nodes), turns)  # type: ignore[arg-type]
    assert scored == [-1.0, -1.0]
    assert [tokenizer.decode(ids) for ids in asked] == ["It is Oslo", "\n<channel|>\n\nIt is Oslo"]
    assert [scorer.room(renderer, task, prompt) for prompt in (start, seen)] == [len(ids) for ids in asked]
