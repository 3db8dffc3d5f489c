"""Initial policy of a stage: the newest checkpoint, of this stage or of the previous one."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from agentrl.config.train import LoraSettings
from agentrl.store.checkpoints import latest
from agentrl.training import checkpoint
from agentrl.training.backend import Start
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import is_of, stage_of


def start_of(
    record: StageRecord, lora: LoraSettings | None, *, refers: bool, texts: Sequence[str] = ()
) -> tuple[Start, checkpoint.Saved | None]:
    """The policy that a stage starts or resumes from, and the states in its checkpoint. Sets the pins of the record.

    A new stage starts from the newest checkpoint, or from the best one of the stage before (`train.keep.best`).

    A stage with the same adapter settings as the previous stage continues to train its adapters. A stage with other
    settings, or without adapters, starts from the merged weights.

    Args:
        refers: the stage uses its initial policy as a reference.
        texts: training texts for the tokenizer of a scratch model.
    """
    newest = latest(record.checkpoints)
    if newest is None:
        return Start(refers=refers, texts=texts), None
    saved = checkpoint.load_state(newest)
    resumes = is_of(record.stage, saved.extra)
    record.best = dict(saved.extra.get("best") or {})
    if not resumes and (best := record.best.get(stage_of(saved.extra))) is not None:
        newest = record.checkpoints / best
        saved = checkpoint.load_state(newest)
    carries = lora is not None and saved.extra["lora"] == lora.model_dump(mode="json")
    base = saved.extra["pins"]["base"] if carries else newest.name
    own = {"base": None if lora is None else base, "reference": newest.name if refers else None}
    record.pins = dict(saved.extra["pins"]) if resumes else own
    weights, reference = (
        None if name is None else record.checkpoints / name for name in (base, record.pins["reference"])
    )
    return Start(weights, resumes, carries, refers, reference, texts), saved


def free_models() -> None:
    """Frees the models of a finished stage, before those of the next stage are loaded."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
