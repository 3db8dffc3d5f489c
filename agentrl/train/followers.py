"""The ranks beside the first: they take the model from rank 0, make the same trainer, and do what it is told to do."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.errors import TrainError
from agentrl.train.ranks import Ranks
from agentrl.train.settings import TrainSettings
from agentrl.train.trainer import Trainer


def lead(model: Any, settings: TrainSettings, *, reference: Any | None, base: Path, ranks: Ranks) -> Trainer:
    """Rank 0's trainer; the others make theirs. Alone: a trainer.

    Raises:
        TrainError: as `Trainer`.
    """
    if ranks.size > 1:
        ranks.tell(("new", (settings, reference is not None, base), {}))
        for each in filter(None, (model, reference)):
            _share(each, ranks)
    return Trainer(model, settings, reference=reference, base=base, ranks=ranks)


def follow(ranks: Ranks) -> None:
    """Does what rank 0's trainer does, until it is dismissed. What fails there fails here, and is told there."""
    _obey(ranks)
    # What still held the group would keep its threads past the interpreter's end, which aborts the process.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _obey(ranks: Ranks) -> None:
    trainer: Trainer | None = None
    while (call := ranks.tell(None)) is not None:
        name, args, kwargs = call
        try:
            if name == "new":
                settings, refers, base = args
                model, reference = _share(None, ranks), _share(None, ranks) if refers else None
                trainer = Trainer(model, settings, reference=reference, base=base, ranks=ranks)
            else:
                getattr(trainer, name)(*args, **kwargs)
        except TrainError:
            continue


def _share(model: Any | None, ranks: Ranks) -> Any:
    """Rank 0's model on all ranks, weight by weight, so that none needs the file or the disk that it came from."""
    about = None if model is None else (type(model), model.config, model.dtype, model.device.type)
    kind, config, dtype, device = ranks.tell(about)
    if model is None:
        model = kind._from_config(config, dtype=dtype, attn_implementation="sdpa").to(device)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
    return model
