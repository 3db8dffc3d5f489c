"""Exporting what a run holds: a checkpoint as a plain model, or its episodes in the format of another tool."""

from __future__ import annotations

from pathlib import Path

from agentrl.api.export.checkpoint import ExportedCheckpoint, export_checkpoint
from agentrl.api.export.episodes import ExportedEpisodes, export_episodes
from agentrl.api.run import Run
from agentrl.integrations.exchange.formats import FORMATS
from agentrl.types.errors import RecipeError


def export(
    run: str | Path | Run,
    to: str | Path,
    *,
    checkpoint: str | int = "last",
    adapter: bool = False,
    public: bool = False,
    out: Path | None = None,
    stage: str | None = None,
    split: str | None = None,
) -> ExportedCheckpoint | ExportedEpisodes:
    """Writes a checkpoint as a plain folder of transformers with a model card, or the episodes of a run in the format
    of another tool, in the order of their records. The run is only read.

    Args:
        to: of a checkpoint: a folder, which must be new or empty, or `hf:NAME`, a repository of the Hugging Face Hub,
            which is made if it is missing. Of episodes: `openai`, `sharegpt`, `atif` or `inspect`.
        checkpoint: `last`, `best` (`train.keep.best`), an iteration, or the name of a checkpoint.
        adapter: of a training with LoRA, write the adapters alone; default: weights with the adapters merged.
        public: with `hf:`, anybody may read the repository.
        out: of episodes: a new file; of `atif`, a new folder.
        stage: only its episodes; default: the only stage.
        split: only `train`, `eval`, `demo` or `rollout`; default: all.

    Raises:
        RecipeError: the run has no such checkpoint, `out` is missing or exists, or an argument is of the other kind.
        StoreError: the checkpoint holds no weights or no adapters, the folder cannot be written, the Hub refuses it, or
            the run has no such episode.
    """
    of_model = {"checkpoint": checkpoint != "last", "adapter": adapter, "public": public}
    of_episodes = {"out": out, "stage": stage, "split": split}
    is_format = str(to) in FORMATS
    if wrong := next((name for name, given in (of_model if is_format else of_episodes).items() if given), None):
        kind = "a checkpoint (--to FOLDER | hf:NAME)" if is_format else f"episodes (--to {' | '.join(FORMATS)})"
        raise RecipeError(f"it is of {kind}", place=f"--{wrong}", remedy=f"leave it out, or change --to {to}")
    if not is_format:
        return export_checkpoint(run, to, checkpoint=checkpoint, adapter=adapter, public=public)
    if out is None:
        raise RecipeError(f"--to {to} needs a new file (of atif, a new folder)", place="--out", remedy="--out NAME")
    return export_episodes(run, str(to), out, stage=stage, split=split)
