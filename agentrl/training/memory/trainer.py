"""The memory trainer: its policy is a frozen model with a text memory, and an update changes the memory.

Importable without torch, so that a recipe is checked without it.
"""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.train import LossSettings
from agentrl.curriculum.parts import Group
from agentrl.engines.registry import chosen_engine
from agentrl.models.load import LoadedModel, load_model
from agentrl.store.checkpoints import STATE
from agentrl.training.backend import Floats, TrainerBackend, TrainerCapabilities, TrainingJob
from agentrl.types.engine import Engine
from agentrl.types.errors import TrainError
from agentrl.types.memory import FILE, HEADING, MemoryChange, TextMemory
from agentrl.types.sample import TrainingSample

LONGEST = 1_000_000_000
"""Context of a model behind an API, which says itself when a prompt is too long."""

UNREAD = frozenset({
    "loss", "kl", "teacher", "ema_reference", "importance", "aggregation", "token_norm", "entropy_bonus", "critic",
    "reward_model", "lora", "trainable", "record_tokens", "max_staleness", "old_logprobs",
})  # fmt: skip
"""Keys of `train` that ask for something that no update of a memory does."""


class MemorySettings(BaseModel):
    """Settings of every trainer of a text memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    heading: str = Field(HEADING, description="The line above the entries in the system message.")
    shown: bool = Field(
        True, description="Put the entries into the system message. false: an agent reads `session.memory`."
    )
    entries: int = Field(64, gt=0, description="Maximum number of entries; additions beyond it are skipped.")


class _Served(LoadedModel):
    """A model behind an API: its conversations are text."""

    def chat(self) -> Any:
        """The tokenizer of text."""
        return ByteTokenizer()


class MemoryTrainer(TrainerBackend):
    """Keeps a frozen policy and its text memory. A subclass implements `write`.

    A checkpoint holds `memory.json` and the policy. The policy's files are written once; later checkpoints link them.

    Attributes:
        memory: the current memory.
        engine: the engine that samples the training episodes, once it is published to.
        loaded: the policy.
    """

    Settings: ClassVar[type[MemorySettings]] = MemorySettings
    capabilities: ClassVar[TrainerCapabilities] = TrainerCapabilities(
        features=frozenset({"all_weights", "temperature", "any_engine", "images"}), unread=UNREAD, memory=True
    )

    def __init__(self, job: TrainingJob, settings: MemorySettings) -> None:
        self.job, self.settings = job, settings
        self.memory = TextMemory(heading=settings.heading, shown=settings.shown, most=settings.entries)
        self.engine: Engine | None = None
        self.loaded: LoadedModel
        self._written: Path | None = None

    @abstractmethod
    async def write(self, groups: Sequence[Group], seed: int) -> Sequence[MemoryChange | None]:
        """Returns the changes that the groups of an iteration teach; None for each that could not be read.

        Args:
            seed: of the iteration.

        Raises:
            TrainError: a model that it asks does not answer.
        """

    async def open(self) -> LoadedModel:
        """Loads the model, unless it is behind an API, and the memory in its folder: a checkpoint has one."""
        recipe, start = self.job.recipe, self.job.start
        if chosen_engine(recipe).plug_in.weights == "own":
            self.loaded = _Served(None, None, LONGEST)
        else:
            model = recipe.required_model
            own = model if start.weights is None else model.at(start.weights)
            self.loaded = await self.job.compute.call(lambda: load_model(own, texts=start.texts, seed=recipe.seed))
        given = None if recipe.model is None else recipe.model.path
        path = given if start.weights is None else start.weights
        if path is not None and (known := TextMemory.load(Path(path))) is not None:
            version = known.version if start.resumes else 0
            entries = {"entries": known.entries, "numbered": known.numbered, "version": version}
            self.memory = msgspec.structs.replace(self.memory, **entries)
        self._written = start.weights
        return self.loaded

    async def begin(self) -> None:
        """Nothing to prepare."""

    async def learn(
        self, samples: Sequence[TrainingSample], groups: Sequence[Group], *, seed: int, progress: float
    ) -> dict[str, float]:
        """Changes the memory by what `write` returns. Returns the counts of changes."""
        changed, told = self.memory.changed(await self.write(groups, seed))
        self.memory = msgspec.structs.replace(changed, version=changed.version + 1)
        return told

    async def publish(self, engine: Engine, checkpoint: Path | None = None) -> TextMemory:
        """Returns the memory, or that of a checkpoint."""
        if checkpoint is None:
            self.engine = engine
            return self.memory
        return TextMemory.load(checkpoint) or TextMemory()

    async def save(self, folder: Path, *, resumes: bool = True) -> Mapping[str, Any]:
        """Writes the memory, and the policy once. The state for `load` is empty: the files are all of it."""
        await self.job.compute.call(self._save, folder)
        return {}

    async def load(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore: `open` read the memory of the checkpoint."""

    async def logprobs(self, samples: Sequence[TrainingSample], *, reference: bool = False) -> list[Floats]:
        """Raises TrainError: no log-probabilities are computed."""
        raise self._refused("log-probabilities")

    async def update(self, samples: Sequence[TrainingSample], *, seed: int, progress: float) -> dict[str, float]:
        """Raises TrainError: `learn` reads groups."""
        raise self._refused("a step of the optimiser")

    async def fit(
        self, samples: Sequence[TrainingSample], loss: LossSettings, lr: float, *, fresh: bool = False
    ) -> dict[str, float]:
        """Raises TrainError: no weights change."""
        raise self._refused("a step of the optimiser")

    def _refused(self, what: str) -> TrainError:
        return TrainError(
            f"{type(self).__name__} changes a text memory, and was asked for {what}",
            place="train.backend",
            remedy="train.backend=local trains weights",
        )

    def _save(self, folder: Path) -> None:
        from agentrl.store.checkpoints import TRAINER
        from agentrl.training.checkpoint import UNFINISHED, write_policy

        self.memory.save(folder)
        if self.loaded.model is None:
            return
        if self._written is None or not self._written.is_dir():
            write_policy(folder, self.loaded.model, self.loaded.save_described)
        else:
            for path in self._written.iterdir():
                if path.is_file() and path.name not in (FILE, TRAINER, STATE):
                    _link(path, folder / path.name)
        self._written = folder.parent / folder.name.removeprefix(UNFINISHED)


def _link(file: Path, new: Path) -> None:
    """Makes a second name for a file; a copy where the file system has no links."""
    try:
        os.link(file, new)
    except OSError:
        shutil.copy2(file, new)
