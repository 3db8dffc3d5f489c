"""The teacher, a frozen model. This module does not import torch: a recipe is checked without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.config.model import ModelSettings
from agentrl.config.train import TeacherSettings
from agentrl.models.load import TOKENIZERS, find_model, load_tokenizer
from agentrl.types.errors import RecipeError

PLACE = "train.teacher.path"


def teacher_of(settings: TeacherSettings, policy: ModelSettings) -> ModelSettings:
    """The settings with which the teacher is loaded: the policy's device and template, and its own weights.

    The teacher reads the policy's tokens: of its template nothing is used.
    """
    return ModelSettings(
        path=settings.path, revision=settings.revision, template="chatml", dtype="float32", device=policy.device
    )


def check_teacher(settings: TeacherSettings, policy: ModelSettings) -> None:
    """Checks the teacher before a run, without loading it: it exists, and has the policy's tokens, if both are on
    this machine.

    Raises:
        RecipeError: it does not exist, or has other tokens.
    """
    own = teacher_of(settings, policy)
    try:
        found = find_model(settings.path, settings.revision)
    except RecipeError as error:
        error.place, error.remedy = PLACE, (error.remedy or "").replace("model.path", PLACE)
        raise
    ours = None if policy.path is None else find_model(policy.path, policy.revision)
    if _has_tokenizer(found) and _has_tokenizer(ours):
        check_same_tokens(load_tokenizer(policy), load_tokenizer(own))


def check_same_tokens(policy: Any, teacher: Any) -> None:
    """Checks that two tokenizers number the same tokens in the same way.

    Raises:
        RecipeError: they do not.
    """
    ours, theirs = policy.get_vocab(), teacher.get_vocab()
    other = next((token for token, number in ours.items() if theirs.get(token) != number), None)
    if other is not None:
        raise RecipeError(
            f"the teacher has other tokens than the policy: {other!r} is {ours[other]} for the policy and "
            f"{theirs.get(other)} for the teacher",
            place=PLACE,
            remedy="take a teacher with the policy's tokenizer, for example a larger model of its family",
        )


def _has_tokenizer(place: Path | None) -> bool:
    return place is not None and place.is_dir() and any((place / name).is_file() for name in TOKENIZERS)
