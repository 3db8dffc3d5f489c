"""Checkpoints: a folder in Hugging Face's format plus the trainer's state. A visible folder is complete.

    it-00040/   config.json, model.safetensors, tokenizer files   (any HF tool can load these)
                adapter/                                          (with LoRA: the adapters alone, for peft)
                policies/NAME/                                    (of an auxiliary trained policy: the same files)
                trainer.pt                                        (optimiser and its counters)
                state.json                                        (the state of the loop; written last)

Everything is written to a hidden folder next to it, flushed to the disk, and renamed: a kill leaves either the complete
checkpoint or none.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.config.train import LoraSettings
from agentrl.models.load import no_progress_bars
from agentrl.store.checkpoints import REPLACED, STATE, TRAINER, about, checkpoints, reading
from agentrl.store.full_disk import is_of_a_full_disk
from agentrl.training.model.lora import save_adapters
from agentrl.types.errors import StoreError

UNFINISHED, _DROPPED = ".new-", ".gone-"


@dataclass(frozen=True)
class Saved:
    """State that `complete` wrote: `trainer`, the state of the trainers, and `extra`."""

    trainer: dict[str, Any]
    extra: dict[str, Any]


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A hidden folder for the files of a checkpoint, which `complete` makes visible. It is removed if the block raises.

    Raises:
        StoreError: the disk is full. Earlier checkpoints remain.
    """
    root = folder.parent
    root.mkdir(parents=True, exist_ok=True)
    _settle(root)
    new = root / f"{UNFINISHED}{folder.name}"
    try:
        new.mkdir()
        yield new
    except Exception as error:
        shutil.rmtree(new, ignore_errors=True)
        if not is_of_a_full_disk(error):
            raise
        raise StoreError(
            "the disk is full: the checkpoint could not be written",
            place=str(folder),
            remedy="free disk space and run the same command again: it resumes from the previous checkpoint "
            "(train.checkpoint_every sets how often one is written)",
        ) from error


def complete(new: Path, folder: Path, trainer: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Writes the states and puts the checkpoint in its place, atomically. An existing one is replaced.

    Args:
        trainer: the state of the trainers (`TrainerBackend.save`), of the main policy and below `policies` of others.
        extra: JSON values that the loop needs to resume, for example the iteration.
    """
    root, old = folder.parent, folder.parent / f"{REPLACED}{folder.name}"
    with (new / TRAINER).open("wb") as file:  # given a path, torch does not report why it failed
        torch.save(dict(trainer), file)
    (new / STATE).write_text(json.dumps(extra, indent=1) + "\n")
    mode = (new / STATE).stat().st_mode
    for path in [*sorted(new.rglob("*")), new]:
        if path.is_file():
            path.chmod(mode)  # safetensors writes for its owner alone
        _flush(path)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    _flush(root)
    shutil.rmtree(old, ignore_errors=True)


def write_policy(
    folder: Path,
    model: Any,
    tokenizer_saver: Callable[[str], Any] | None,
    *,
    weights: Mapping[str, Tensor] | None = None,
    adapters: Mapping[str, Tensor] | None = None,
    lora: LoraSettings | None = None,
) -> None:
    """Writes a policy in Hugging Face's format.

    Args:
        model: a model of transformers.
        tokenizer_saver: for example `tokenizer.save_pretrained`.
        weights: `Trainer.weights()`, if the model is sharded or has adapters; None: the model's own weights.
        adapters: `Trainer.adapters()`, which are also saved alone, with their settings `lora`.
    """
    with no_progress_bars():
        model.save_pretrained(str(folder), state_dict=None if weights is None else dict(weights))
    if adapters is not None and lora is not None:
        save_adapters(folder / "adapter", adapters, lora)
    if tokenizer_saver is not None:
        tokenizer_saver(str(folder))


def load_state(folder: Path) -> Saved:
    """Reads the state of the trainer and the loop. The model is loaded like any Hugging Face model.

    Raises:
        StoreError: the folder is not a checkpoint, or it is damaged.
    """
    trainer = reading(folder, lambda: torch.load(folder / TRAINER, map_location="cpu", weights_only=True))
    return Saved(trainer, about(folder))


def prune(root: Path, keep: int, pinned: Collection[str] = ()) -> None:
    """Removes all checkpoints except the last `keep` and those in `pinned`, and unfinished ones of killed runs."""
    if keep < 1:
        raise ValueError(f"keep={keep}: the newest checkpoint is never removed")
    _settle(root)
    for folder in checkpoints(root)[:-keep]:
        if folder.name in pinned:
            continue
        # Renamed first, so that a kill in between leaves no folder that looks complete.
        shutil.rmtree(folder.rename(root / f"{_DROPPED}{folder.name}"), ignore_errors=True)


def _settle(root: Path) -> None:
    """Cleans up after a killed run: restores checkpoints that were moved aside, and removes incomplete ones."""
    for folder in root.glob(f"{REPLACED}*"):
        if not (place := root / folder.name.removeprefix(REPLACED)).exists():
            folder.rename(place)
    for prefix in (UNFINISHED, REPLACED, _DROPPED):
        for folder in root.glob(f"{prefix}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _flush(path: Path) -> None:
    """Makes a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cast(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict with floating-point tensors in `dtype`; tied ones stay tied."""
    done = {id(tensor): tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in state.values()}
    return {name: done[id(tensor)] for name, tensor in state.items()}
