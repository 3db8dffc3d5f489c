"""Episodes with images, sampled by the embedded engine, and trainers for them."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import torch

from agentrl.chat.formats.registry import parser_of
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.config.agent import FormatSettings
from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import LoadedModel
from agentrl.training.auxiliary.models import required_models
from agentrl.training.model.vision_inputs import vision_of
from agentrl.training.trainer import Trainer
from agentrl.types.engine import Sampling
from agentrl.types.parts.image import image_info
from agentrl.types.sample import TrainingSample, samples_of
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.vision.families import picture, shown

FILES: dict[str, bytes] = {}


def part(seed: int, width: int = 40, height: int = 24) -> dict[str, Any]:
    """An image of a message; its file is in FILES."""
    data = picture(seed, width, height)
    sha = hashlib.sha256(data).hexdigest()
    FILES[sha] = data
    said = image_info(data)
    return {"type": "image", "blob": sha, "width": said.width, "height": said.height, "format": "png"}


async def episode(engine: TorchEngine, renderer: Renderer, first: int, seed: int) -> list[TrainingSample]:
    """Four turns with three images; the engine samples the replies."""
    messages = [shown("What is it?", part(first))]
    later = [
        [shown("And this one?", part(first + 1, 24, 40))],
        [{"role": "user", "content": "Sure?"}],
        [shown("room 7", part(first + 2), "tool")],
    ]
    trajectory, turns = Trajectory(), {}
    thread = Thread(trajectory, None)
    thread.restart(messages)
    engine.begin_session(f"s{seed}", Task.of("t", ""), thread.messages, seed)
    engine.use_images(f"s{seed}", FILES.__getitem__)
    for turn in range(4):
        prompt = thread.prompt(renderer)
        sampling = Sampling(max_tokens=6, seed=100 * seed + turn, stop_token_ids=renderer.stop_token_ids)
        said = await engine.generate(prompt.tokens, sampling, f"s{seed}")
        turns[thread.reply(prompt, said, "It is.", opened="", trained=True)] = turn
        if turn < 3:
            thread.add(later[turn])
    engine.end_session(f"s{seed}")

    def sample(**arrays: Any) -> TrainingSample:
        return TrainingSample(episode_id=f"e{seed}", group_id="g", images=tuple(FILES), **arrays)

    return samples_of(trajectory.nodes, turns, sample)


async def played(loaded: LoadedModel) -> list[TrainingSample]:
    """Three episodes: two of the same images, one of others of the same sizes."""
    renderer = Renderer(loaded.chat(), parser_of(FormatSettings(use="hermes"), []), [])
    engine = TorchEngine(copy.deepcopy(loaded.model), processor=loaded.processor, max_context=loaded.max_context)
    try:
        return [s for k, first in enumerate((0, 0, 10)) for s in await episode(engine, renderer, first, k)]
    finally:
        await engine.close()


def trainer_of(loaded: LoadedModel, needs: tuple[str, ...] = (), **settings: Any) -> Trainer:
    """A trainer of a copy of the model.

    Args:
        needs: columns of credit that auxiliary models fill.
    """
    own = TrainSettings(**settings)
    eyes = vision_of(loaded, FILES.__getitem__, own)
    return Trainer(copy.deepcopy(loaded.model), own, eyes=eyes, auxiliary=required_models(own, needs))


def gradients(trainer: Trainer, samples: list[TrainingSample]) -> dict[str, torch.Tensor]:
    """The gradients of an update."""
    found: dict[str, torch.Tensor] = {}
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda *a, **k: found.update(  # type: ignore[method-assign]
        {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    )
    trainer.update(samples, 0)
    trainer.optimizer.step = step  # type: ignore[method-assign]
    return found


def with_advantages(samples: list[TrainingSample]) -> list[TrainingSample]:
    """The samples with advantages of both signs."""
    return [
        TrainingSample(**{**vars(sample), "advantage": np.where(sample.loss_mask, (-1.0) ** k, 0).astype(np.float32)})
        for k, sample in enumerate(samples)
    ]
