"""A checkpoint of a run as a plain model of transformers, in a folder or on the Hugging Face Hub."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.api.export.base_model import BaseModel, base_of
from agentrl.api.export.card import model_card
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import kept_checkpoint
from agentrl.models.hub import WEIGHTS
from agentrl.store.checkpoints import STATE, TRAINER
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError, MissingExtra, StoreError
from agentrl.types.http.hub import page_of, refused

HUB = "hf:"
CARD = "README.md"
_ADAPTER = "adapter"
_TEMPLATES = "additional_chat_templates/*"
"""Templates of a tokenizer that has several, besides the usual one."""
_REPLACED = ["config.json", "model*.safetensors*", "pytorch_model*.bin*", "adapter_config.json", "adapter_model.*"]
"""Files of an earlier push that the same commit removes: transformers would load them instead of the new ones, adapters
before a model, and one file of weights before several."""


@dataclass(frozen=True)
class ExportedCheckpoint:
    """A model that was written.

    Attributes:
        place: its folder, or the address of its page on the Hub.
        checkpoint: name of the checkpoint.
        commit: of the Hub; None: it is in a folder.
    """

    place: str
    checkpoint: str
    commit: str | None = None


def export_checkpoint(
    run: str | Path | Run,
    to: str | Path,
    *,
    checkpoint: str | int = "last",
    adapter: bool = False,
    public: bool = False,
) -> ExportedCheckpoint:
    """Writes a checkpoint as a plain folder of transformers (peft with `adapter`), with a model card. The run is only
    read.

    Args:
        to: a folder, which must be new or empty, or `hf:NAME`: a repository of the Hugging Face Hub, which is made
            if it is missing.
        checkpoint: `last`, `best` (`train.keep.best`), an iteration, or the name of a checkpoint.
        adapter: of a training with LoRA, write the adapters alone; default: weights with the adapters merged.
        public: with `hf:`, anybody may read the repository.

    Raises:
        RecipeError: the run has no such checkpoint.
        StoreError: the checkpoint holds no weights or no adapters, the folder cannot be written, or the Hub refuses it.
    """
    folder = folder_of(run)
    chosen = kept_checkpoint(folder, str(checkpoint))
    name = str(to).removeprefix(HUB) if str(to).startswith(HUB) else None
    if public and name is None:
        raise StoreError("only a repository of the Hub is public", place="--public", remedy=f"--to {HUB}NAME")
    with RunDir.read(folder) as reader:
        base = base_of(reader.info, chosen, folder)
        files = _adapter_files(chosen) if adapter else _model_files(chosen)
        card = model_card(reader, chosen, base, adapter=adapter, to=str(to))
    if adapter:
        base.require_named(chosen, public=name is not None)

    def write(into: Path, put: Callable[[Path, Path], Any]) -> None:
        for name, file in files.items():
            (into / name).parent.mkdir(exist_ok=True)
            put(file.absolute(), into / name)
        if adapter:
            _name_base(into / "adapter_config.json", base)
        (into / CARD).write_text(card, encoding="utf-8")

    if name is not None:
        return ExportedCheckpoint(*_push(name, chosen, write, public=public))
    with _new_folder(Path(to), folder) as new:
        write(new, shutil.copyfile)
    return ExportedCheckpoint(str(to), chosen.name)


def _model_files(checkpoint: Path) -> dict[str, Path]:
    """Returns the files of a whole model by their names: merged weights, configuration, tokenizer, processor."""
    if not any(True for pattern in WEIGHTS for _ in checkpoint.glob(pattern)):
        raise StoreError(
            "the checkpoint holds no weights: its trainer keeps them elsewhere, or changes a text memory alone",
            place=str(checkpoint),
            remedy="export a run whose trainer writes weights (train.backend: local)",
        )
    found = sorted([*checkpoint.iterdir(), *checkpoint.glob(_TEMPLATES)])
    own = [file for file in found if file.is_file() and file.name not in (STATE, TRAINER, CARD)]
    return {file.relative_to(checkpoint).as_posix(): file for file in own}


def _adapter_files(checkpoint: Path) -> dict[str, Path]:
    """Returns the adapters in peft's format, and the tokenizer."""
    own = sorted((checkpoint / _ADAPTER).glob("adapter_*"))
    if not own:
        raise StoreError(
            "the checkpoint has no adapters: its stage trained without train.lora",
            place=str(checkpoint),
            remedy="leave --adapter out, which writes the whole model",
        )
    weights = {file for pattern in (*WEIGHTS, "*.index.json", "config.json") for file in checkpoint.glob(pattern)}
    beside = {name: file for name, file in _model_files(checkpoint).items() if file not in weights}
    return {file.name: file for file in own} | beside


def _name_base(file: Path, base: BaseModel) -> None:
    """Names in an adapter's configuration the model that it adapts, which peft loads with it."""
    settings = json.loads(file.read_bytes())
    if file.is_symlink():  # into the run
        file.unlink()
    named = {"base_model_name_or_path": base.name, "revision": base.revision}
    file.write_text(json.dumps(settings | named, indent=2, sort_keys=True) + "\n")


@contextmanager
def _new_folder(place: Path, run: Path) -> Iterator[Path]:
    """A hidden folder next to `place`, which takes its name when the block ends; it is removed if the block raises.

    Raises:
        StoreError: `place` holds files or lies in the run, or it cannot be written.
    """
    other = "--to another folder; the run still has the checkpoint"
    if place.resolve().is_relative_to(run.resolve()):
        raise StoreError("lies in the run directory, which is only read", place=str(place), remedy=other)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        what = "the folder is not empty" if place.is_dir() else "is a file"
        raise StoreError(what, place=str(place), remedy=other)
    new: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        new.chmod(0o777 & ~_umask())
        yield new
        new.rename(place)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}" if error.filename is not None else error.strerror
        raise StoreError(f"cannot be written: {why}", place=str(place), remedy=other) from error
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def _push(
    name: str, checkpoint: Path, write: Callable[[Path, Callable[[Path, Path], Any]], None], *, public: bool
) -> tuple[str, str, str]:
    """Pushes a model in one commit. Returns the page, the name of the checkpoint, and the commit.

    Raises:
        StoreError: the Hub cannot be reached or refuses it, or the repository is there with another visibility.
    """
    place = f"{HUB}{name}"
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtra("huggingface_hub", "train") from None
    try:
        hub = HfApi()
        repository = hub.create_repo(name, private=not public, exist_ok=True).repo_id
        if hub.model_info(repository).private == public:
            raise _other_visibility(place, public=public)
        with tempfile.TemporaryDirectory(prefix="agentrl-export-") as folder:
            write(Path(folder), lambda file, link: link.symlink_to(file))  # weights are uploaded from where they are
            done = hub.upload_folder(
                repo_id=repository,
                folder_path=folder,
                commit_message=f"{checkpoint.name}, exported by agentrl",
                delete_patterns=_REPLACED,
            )
    except AgentRLError:
        raise
    except Exception as error:
        fault, remedy = refused(error, name)
        again = f"{remedy}; then the same command again. The run still has the checkpoint: --to FOLDER writes it here"
        raise StoreError(fault, place=place, remedy=again) from error
    return page_of(repository), checkpoint.name, str(done.oid)


def _other_visibility(place: str, *, public: bool) -> StoreError:
    if public:
        return StoreError(
            "the repository exists and is private",
            place=place,
            remedy="leave --public out, or change its visibility on its page of the Hub",
        )
    return StoreError(
        "the repository exists and anybody may read it",
        place=place,
        remedy="--public allows that, or take another name",
    )
