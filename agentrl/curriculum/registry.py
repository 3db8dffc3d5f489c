"""The registry of curriculum parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config.tasks import CurriculumPart
from agentrl.curriculum.parts import Filter, Part, Sampler, Schedule
from agentrl.registry.registry import Registry


def _part(found: Any) -> type[Part] | None:
    return found if isinstance(found, type) and issubclass(found, (Sampler, Schedule, Filter)) else None


PARTS: Registry[type[Part]] = Registry(
    kind="curriculum",
    group="curriculum",
    key="curriculum",
    built_in={
        "dump": "agentrl.curriculum.methods.sources:Dump",
        "dads": "agentrl.curriculum.methods.sources:Dads",
        "mixture": "agentrl.curriculum.methods.mixture:Mixture",
        "vas": "agentrl.curriculum.methods.difficulty:Vas",
        "vade": "agentrl.curriculum.methods.difficulty:Vade",
        "limr": "agentrl.curriculum.methods.limr:Limr",
        "hard_focus": "agentrl.curriculum.methods.measured:HardFocus",
        "of_level": "agentrl.curriculum.methods.measured:OfLevel",
        "levels": "agentrl.curriculum.methods.levels:Levels",
        "scaling_inter": "agentrl.curriculum.methods.horizon:ScalingInter",
        "zerosearch": "agentrl.curriculum.methods.noise:ZeroSearch",
        "seele": "agentrl.curriculum.methods.hints:Seele",
        "entropy_target": "agentrl.curriculum.methods.temperature:EntropyTarget",
        "laser_d": "agentrl.curriculum.methods.lengths:LaserD",
        "stepwise": "agentrl.curriculum.methods.stepwise:Stepwise",
        "expert_budget": "agentrl.curriculum.methods.budget:ExpertBudget",
        "dart_rollouts": "agentrl.curriculum.methods.dart:DartRollouts",
        "dart_turns": "agentrl.curriculum.methods.dart:DartTurns",
        "dart_successes": "agentrl.curriculum.methods.dart:DartSuccesses",
        "zero_variance": "agentrl.curriculum.methods.zero_variance:ZeroVariance",
        "dapo": "agentrl.curriculum.methods.zero_variance:DynamicSampling",
        "prof": "agentrl.curriculum.methods.prof:Prof",
        "rorecomp": "agentrl.curriculum.methods.rorecomp:RoRecomp",
        "low_likelihood": "agentrl.curriculum.methods.measured:LowLikelihood",
        "recap": "agentrl.curriculum.methods.recap:Recap",
        "relift": "agentrl.curriculum.methods.relift:Relift",
        "last_try": "agentrl.curriculum.methods.last_try:LastTry",
    },
    wanted="a Sampler, Schedule or Filter",
    accept=_part,
    contracts=[Sampler, Schedule, Filter],
    about=lambda part: {
        "part": next(kind.__name__.lower() for kind in (Sampler, Schedule, Filter) if issubclass(part, kind)),
        "certainty": part.certainty,
        "origin": part.source,
    },
)


def load_part(entry: CurriculumPart, base: Path, place: str) -> Part:
    """Makes a part.

    Raises:
        RecipeError: the part does not exist, is not a part, or a setting is wrong.
    """
    part: Part = PARTS.chosen(entry, base, place).make()
    part.name = entry.use
    return part
