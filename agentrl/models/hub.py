"""Models of the Hugging Face Hub: found in the cache of huggingface_hub, or downloaded to it.

The cache is huggingface_hub's (HF_HOME, by default ~/.cache/huggingface), which transformers, vLLM and `hf download`
share. A snapshot in it lies in a folder with the name of its commit.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

from agentrl.types.errors import MissingExtra, RecipeError
from agentrl.types.http.hub import explained, unreachable

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_PARTS = [*WEIGHTS, "*.json", "*.model", "*.txt", "*.jinja"]
"""The files that are downloaded: weights, configuration, tokenizer, template and processor."""

_COPIES = ["consolidated*.safetensors", *(f"*/{pattern}" for pattern in WEIGHTS)]
"""Weights that some repositories hold once more, in the layout of other programs: next to the others (Mistral), or in a
folder (gpt-oss)."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PART_OF_SEVERAL = re.compile(r"-\d+-of-\d+\.")


def is_hub_name(name: str) -> bool:
    """Returns True for OWNER/NAME, unless there is a folder OWNER: then it is a path."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None and not Path(name).parent.exists()


def commit_of(snapshot: Path) -> str | None:
    """Returns the commit of a snapshot in the cache; None for another folder."""
    return snapshot.name if snapshot.parent.name == "snapshots" else None


def in_cache(name: str, revision: str | None) -> Path | None:
    """Returns the snapshot of a model in the cache; None if a part of it is missing there. Asks no server."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(name, revision=revision, allow_patterns=_PARTS, local_files_only=True))
    except (OSError, ValueError):  # a part is missing there; the name is none of the Hub
        return None
    return found if _is_whole(found) else None


def download(name: str, revision: str | None) -> Path:
    """Returns the snapshot of a model as the Hub has it now; what the cache lacks is downloaded. If the Hub cannot be
    reached, that of the cache.

    Raises:
        RecipeError: the Hub does not give the model, or cannot be reached and the cache lacks it.
        MissingExtra: huggingface_hub is not installed.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtra("huggingface_hub", "train")
    from huggingface_hub import HfApi, snapshot_download

    try:
        found = Path(snapshot_download(name, revision=revision, allow_patterns=_PARTS, ignore_patterns=_COPIES))
        if not _is_whole(found):
            HfApi().model_info(name, revision=revision)  # raises without a network: then the cache holds a part
        return found
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and not unreachable(error):
            raise  # of this machine's disk
        fault, remedy = explained(error, name, revision)
        raise RecipeError(fault, place="model", remedy=remedy) from error


def fetch_commit(name: str, revision: str | None) -> str:
    """Returns the commit of a model, which is then in the cache. A branch or a tag is asked for at the Hub; the whole
    hash of a commit only if the cache lacks it: what it names never changes.

    Raises:
        RecipeError, MissingExtra: as `download`.
    """
    named = revision is not None and _COMMIT.fullmatch(revision) is not None
    found = (in_cache(name, revision) if named else None) or download(name, revision)
    return commit_of(found) or str(revision)


def _is_whole(snapshot: Path) -> bool:
    """Returns True if a snapshot has its configuration and all weights. An interrupted download, or a program that
    took single files, leaves a part: also the first of several files, without the index that names them."""
    if not (snapshot / "config.json").is_file():
        return False
    indexes = [index for pattern in WEIGHTS for index in snapshot.glob(f"{pattern}.index.json")]
    named = {file for index in indexes for file in json.loads(index.read_bytes())["weight_map"].values()}
    there = {path.name for pattern in WEIGHTS for path in snapshot.glob(pattern)}
    parts = {name for name in there if _PART_OF_SEVERAL.search(name)}
    return named <= there and bool(there - (parts - named))
