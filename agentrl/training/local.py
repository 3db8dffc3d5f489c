"""The local trainer: a model of transformers in this process, or sharded over several ranks (docs/training.md).

Importable without torch, so that a recipe is checked without it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from agentrl.config.train import LossSettings
from agentrl.models.load import LoadedModel, load_model
from agentrl.store.tokens import TokenRecord
from agentrl.training.backend import (
    COLUMNS,
    Column,
    Feature,
    Floats,
    TrainerBackend,
    TrainerCapabilities,
    TrainingJob,
)
from agentrl.training.teacher import check_same_tokens, teacher_of
from agentrl.types.engine import Adapter, ChangedWeights, Engine
from agentrl.types.sample import TrainingSample

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.training.auxiliary.critic import Critic
    from agentrl.training.auxiliary.reward_model import ImplicitRewardModel
    from agentrl.training.trainer import Trainer


class LocalTrainer(TrainerBackend):
    """Trains in this process, alone or as rank 0. Every computation runs in `job.compute`."""

    capabilities: ClassVar[TrainerCapabilities] = TrainerCapabilities(
        loss_functions=True, columns=frozenset(COLUMNS), features=frozenset(get_args(Feature))
    )

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._call = job, job.compute.call
        self._loaded: LoadedModel
        self._trainer: Trainer

    async def open(self) -> LoadedModel:
        """Loads the model."""
        self._loaded = self._load(self._job.start.weights)
        return self._loaded

    async def begin(self) -> None:
        """Makes the trainer, on all ranks."""
        self._trainer = await self._call(self._made)
        if self._trainer.unpacked is not None:
            self._job.note(f"packing: rows (no shared prefixes), because {self._trainer.unpacked}")

    async def logprobs(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[Floats]:
        """Computes them in packs."""
        return await self._call(partial(self._trainer.logprobs, samples, under="reference" if reference else "policy"))

    async def column(self, name: Column, samples: Sequence[TrainingSample]) -> list[Floats]:
        """Computes the entropy, log-probabilities under another policy, or the output of an auxiliary model."""
        if name == "entropy":
            return await self._call(self._trainer.entropies, samples)
        if name in ("teacher_logprob", "ema_logprob"):
            under = "teacher" if name == "teacher_logprob" else "ema_reference"
            return await self._call(partial(self._trainer.logprobs, samples, under=under))
        if name == "prm_logprob":
            return await self._call(self._reward_model.logprobs, samples)
        return await self._call(self._critic(name).predict, samples)

    async def fit_column(
        self, name: Column, samples: Sequence[TrainingSample], targets: Sequence[Floats] | None = None
    ) -> dict[str, float]:
        """Trains an auxiliary model."""
        if name == "prm_logprob":
            sampled = self._reward_model.settings.reference == "policy"
            reference = (
                [sample.behaviour_logprob for sample in samples]
                if sampled
                else await self.logprobs(samples, reference=True)
            )
            return await self._call(self._reward_model.fit, samples, reference)
        if targets is None:
            return await self._call(self._critic(name).fit_progress, samples)
        return await self._call(self._critic(name).fit_values, samples, targets)

    async def update(self, samples: Sequence[TrainingSample], *, seed: int, progress: float) -> dict[str, float]:
        """See `Trainer.update`."""
        return await self._call(partial(self._trainer.update, samples, seed=seed, progress=progress))

    async def accumulate(self, samples: Sequence[TrainingSample], *, progress: float) -> None:
        """See `Trainer.accumulate`."""
        await self._call(partial(self._trainer.accumulate, samples, progress))

    def recorded(self) -> Sequence[TokenRecord]:
        """See `Trainer.recorded`."""
        return self._trainer.recorded

    async def fit(
        self, samples: Sequence[TrainingSample], loss: LossSettings, lr: float, *, fresh: bool = False
    ) -> dict[str, float]:
        """See `Trainer.fit`."""
        return await self._call(partial(self._trainer.fit, samples, loss, lr, fresh=fresh))

    async def publish(self, engine: Engine, checkpoint: Path | None = None) -> Any:
        """Gathers the weights, or the adapters if the engine takes them. An engine that has all of the weights gets
        those that change.
        """
        import torch

        settings, model = self._job.settings, self._job.recipe.required_model
        if checkpoint is not None:
            return await self._call(self._stored, checkpoint)
        device = "cpu" if engine.shares_gpu else None  # no copy on the GPU: the engine needs the memory
        weights = partial(self._trainer.weights, model.dtype, device, checkpoint_names=engine.checkpoint_names)
        if engine.shares_gpu:
            torch.cuda.empty_cache()
        if settings.lora is not None and engine.takes_adapters:
            return await self._adapter(partial(weights, adapters=False))
        partly = settings.lora is None and settings.trainable is not None
        if partly and engine.takes_changes:
            return ChangedWeights(await self._call(partial(weights, frozen=False)))
        return await self._call(weights)

    async def save(self, folder: Path, *, resumes: bool = True) -> Mapping[str, Any]:
        """Writes merged weights, adapters and tokenizer."""
        return await self._call(self._save, folder, resumes)

    async def load(self, state: Mapping[str, Any]) -> None:
        """Restores optimiser, adapters and auxiliary models; of another stage, the adapters if they carry on."""
        await self._call(self._restore, state)

    def _load(self, weights: Path | None) -> LoadedModel:
        recipe = self._job.recipe
        own = recipe.required_model.for_training()
        return load_model(own if weights is None else own.at(weights), texts=self._job.start.texts, seed=recipe.seed)

    def _made(self) -> Trainer:
        from agentrl.training.auxiliary.models import required_models
        from agentrl.training.model.vision_inputs import vision_of
        from agentrl.training.spmd import driver_trainer

        job = self._job
        return driver_trainer(
            self._loaded.model,
            job.settings,
            reference=self._reference(),
            teacher=self._teacher(),
            base=job.recipe.base,
            ranks=job.ranks,
            auxiliary=required_models(job.settings, job.needs),
            eyes=vision_of(self._loaded, job.image, job.settings),
        )

    def _teacher(self) -> Any | None:
        """Loads the teacher.

        Raises:
            TrainError: its tokens are not the policy's.
        """
        settings, own = self._job.settings.teacher, self._loaded.tokenizer
        if settings is None:
            return None
        model = self._job.recipe.required_model
        loaded = load_model(teacher_of(settings, model), seed=self._job.recipe.seed)
        check_same_tokens(own, loaded.tokenizer)
        return loaded.model

    def _reference(self) -> Any | None:
        start = self._job.start
        if not start.refers:
            return None
        return copy.deepcopy(self._loaded.model) if start.reference is None else self._load(start.reference).model

    def _critic(self, name: Column) -> Critic:
        critic: Any = self._trainer.auxiliary[name]
        return critic  # type: ignore[no-any-return]

    @property
    def _reward_model(self) -> ImplicitRewardModel:
        from agentrl.training.auxiliary.models import REWARD_MODEL

        model: Any = self._trainer.auxiliary[REWARD_MODEL]
        return model  # type: ignore[no-any-return]

    async def _adapter(self, base: Any) -> Any:
        """The adapters alone. `base` returns the weights below them, for servers that have others."""
        from agentrl.training.model.lora import save_adapters

        assert self._job.settings.lora is not None
        own = await self._call(self._trainer.adapters)
        save = partial(save_adapters, weights=own, settings=self._job.settings.lora)
        return Adapter(save, partial(self._call, base))

    def _stored(self, checkpoint: Path) -> dict[str, Tensor]:
        """The weights of a checkpoint, in the engine's type."""
        import torch

        from agentrl.training.checkpoint import cast

        return cast(self._load(checkpoint).model.state_dict(), getattr(torch, self._job.recipe.required_model.dtype))

    def _save(self, folder: Path, resumes: bool) -> dict[str, Any]:
        from agentrl.training.checkpoint import write_policy

        trainer, lora = self._trainer, self._job.settings.lora
        state: dict[str, Any] = {}
        if resumes:
            state = {**trainer.state_dict(), "critics": {name: m.state_dict() for name, m in trainer.auxiliary.items()}}
        elif lora is not None:
            state = {"adapters": trainer.adapters()}
        write_policy(
            folder,
            self._loaded.model,
            self._loaded.save_described,
            weights=trainer.weights(device="cpu"),
            adapters=state.get("adapters"),
            lora=lora,
        )
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        trainer, start = self._trainer, self._job.start
        if start.resumes:
            trainer.load_state_dict(dict(state))
            for name, model in trainer.auxiliary.items():
                if name in state["critics"]:  # otherwise it starts from scratch: the recipe has got it since
                    model.load_state_dict(state["critics"][name])
        elif start.carries:
            trainer.load_adapters(state["adapters"])
