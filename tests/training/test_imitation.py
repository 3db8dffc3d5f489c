"""Turns that a filter corrects: one supervised step on the new texts alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.train import LossSettings
from agentrl.curriculum import Curriculum
from agentrl.curriculum.parts import Correction, CurriculumContext, Filter
from agentrl.curriculum.task_source import TaskSource
from agentrl.training.imitation import Imitation
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.sample import TrainingSample
from agentrl.types.task import Task

RENDERER = Renderer(ByteTokenizer(), parser_named("hermes", []), [])


def episode(id: str, *texts: str) -> Episode:
    prompt = [{"role": "user", "content": "go"}]
    nodes = [Node(parent=-1, kind="prompt", token_ids=RENDERER.start(prompt))]
    spoken = []
    for index, text in enumerate(texts):
        nodes.append(
            Node(parent=len(nodes) - 1, kind="sampled", token_ids=[*text.encode()], logprobs=[-1.0] * len(text))
        )
        observations = [{"role": "user", "content": "on"}]
        spoken.append(Turn(index=index, node=len(nodes) - 1, text=text, finish="stop", observations=observations))
    return Episode(
        id=id,
        group_id="g",
        task=Task.of("t", "go"),
        status="done",
        prompt=prompt,
        nodes=nodes,
        turns=spoken,
        reward=0.0,
    )


class Mends(Filter):
    """Corrects turns in its first iteration."""

    name = "mends"

    def correct(self, context: CurriculumContext) -> tuple[float, list[Correction]] | None:
        if context.iteration > 0:
            return 0.5, []
        return 0.5, [
            Correction(episode("g#0", "wrong", "later"), 0, "right"), Correction(episode("g#1", "a", "b"), 1, "c"),
        ]  # fmt: skip


class Idle(Filter):
    """Corrects nothing."""

    name = "idle"


class Trainer:
    """Keeps what it is asked to fit."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[TrainingSample], LossSettings, float, bool]] = []

    async def fit(
        self, samples: list[TrainingSample], loss: LossSettings, lr: float, *, fresh: bool = False
    ) -> dict[str, float]:
        self.asked.append((samples, loss, lr, fresh))
        return {"loss": 1.5, "lr": lr}


def imitation(trainer: Any) -> Imitation:
    unused: Any = SimpleNamespace()
    curriculum = Curriculum([Idle(), Mends()], seed=0, iterations=2)
    return Imitation(curriculum, unused, TaskSource([]), unused, RENDERER, trainer)


async def test_only_the_new_texts_train_in_a_step_of_their_own() -> None:
    trainer = Trainer()
    assert await imitation(trainer).step(0) == {"mends_loss": 1.5, "mends_turns": 2.0}
    ((samples, loss, lr, fresh),) = trainer.asked
    said = [ByteTokenizer().decode(sample.token_ids[sample.loss_mask].tolist()) for sample in samples]
    assert [text.removesuffix("<|im_end|>") for text in said] == ["right", "c"]
    whole = [ByteTokenizer().decode(sample.token_ids.tolist()) for sample in samples]
    assert "wrong" not in whole[0]
    assert "later" not in whole[0]
    assert "<|im_start|>assistant\na<|im_end|>" in whole[1], "the turns before it are its context"
    assert (loss.use, lr, fresh) == ("cross_entropy", 0.5, True)


async def test_without_corrections_no_step_is_taken() -> None:
    trainer = Trainer()
    assert await imitation(trainer).step(1) == {}
    assert trainer.asked == []
