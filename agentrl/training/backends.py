"""Registry of the trainers: the values of `train.backend`."""

from __future__ import annotations

from agentrl.registry.registry import Registry, subclass_of
from agentrl.training.backend import TrainerBackend

TRAINERS: Registry[type[TrainerBackend]] = Registry(
    kind="trainer",
    group="trainers",
    key="train.backend",
    built_in={
        "local": "agentrl.training.local:LocalTrainer",
        "experiences": "agentrl.training.memory.experiences:ExperienceTrainer",
    },
    wanted="a subclass of agentrl.training.backend.TrainerBackend, whose constructor takes job, and its settings",
    accept=subclass_of(TrainerBackend),  # type: ignore[type-abstract]
    contracts=[TrainerBackend],
    filled=("job",),
)
