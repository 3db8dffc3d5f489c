"""Trainer ranks other than rank 0: they receive the model from rank 0, make the same trainer, and repeat its calls."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.config.train import TrainSettings
from agentrl.models.load import ONE_LOADS
from agentrl.training.auxiliary.models import AuxiliarySettings
from agentrl.training.model.vision_inputs import VisionInputs
from agentrl.training.parallel.ranks import Ranks, named_failures
from agentrl.training.trainer import Trainer
from agentrl.types.errors import RankFailed, RankUnreachable, TrainError

STARTING = "starting the trainer"


def driver_trainer(
    model: Any,
    settings: TrainSettings,
    *,
    reference: Any | None,
    teacher: Any | None = None,
    base: Path,
    ranks: Ranks,
    auxiliary: Mapping[str, AuxiliarySettings] | None = None,
    eyes: VisionInputs | None = None,
) -> Trainer:
    """Makes the trainer of rank 0, and makes the other ranks create theirs.

    Raises:
        TrainError: as `Trainer`; or the model sees, and there are several ranks.
        RankFailed: this rank is out of memory, or another rank is gone.
    """
    if eyes is not None and ranks.size > 1:
        raise TrainError(
            "a model that sees is trained by one rank only",
            place="scale.trainer_ranks",
            remedy="scale.trainer_ranks: 1, and no torchrun",
        )
    with named_failures(STARTING):
        if ranks.size > 1:
            frozen = {"reference": reference, "teacher": teacher}
            names = [name for name, each in frozen.items() if each is not None]
            ranks.broadcast(("new", "", (settings, names, base, auxiliary), {}))
            for each in (model, *(frozen[name] for name in names)):
                _share(each, ranks)
        return Trainer(
            model,
            settings,
            reference=reference,
            teacher=teacher,
            base=base,
            ranks=ranks,
            auxiliary=auxiliary,
            eyes=eyes,
        )


def worker_loop(ranks: Ranks) -> None:
    """Repeats the calls of rank 0's trainer until rank 0 dismisses this rank. Rank 0 reports common errors.

    Raises:
        RankFailed: this rank is out of memory, or another rank is gone.
    """
    _serve_calls(ranks)
    # A reference to the group would keep its threads alive at the interpreter's exit, which aborts the process.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _serve_calls(ranks: Ranks) -> None:
    shared: dict[str, Any] = {}
    while (call := _next(ranks)) is not None:
        role, name, args, kwargs = call
        try:
            if role == "new":
                shared.clear()  # of the stage before
                settings, names, base, auxiliary = args
                with named_failures(STARTING):
                    model = _share(None, ranks)
                    frozen = {each: _share(None, ranks) for each in names}
                    trainer = Trainer(model, settings, **frozen, base=base, ranks=ranks, auxiliary=auxiliary)
                shared.update({trainer.role: trainer, **trainer.auxiliary})
                del model, frozen, trainer
            else:
                getattr(shared[role], name)(*args, **kwargs)
        except RankFailed:
            raise
        except TrainError:
            continue  # raised on every rank


def _next(ranks: Ranks) -> Any:
    try:
        return ranks.broadcast(None)
    except RankUnreachable as error:
        raise RankUnreachable("rank 0 ended before its trainer did", remedy="see the output of rank 0") from error


def _share(model: Any | None, ranks: Ranks) -> Any:
    """Broadcasts rank 0's model weight by weight, so that no other rank needs access to the model's files."""
    about = None if model is None else (type(model), model.config, model.dtype, model.device.type)
    kind, config, dtype, device = ranks.broadcast(about)
    if model is None:
        with ONE_LOADS:
            model = kind._from_config(config, dtype=dtype, attn_implementation="sdpa").to(device)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    return model
