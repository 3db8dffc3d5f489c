"""The tokenizer of a run that is being trained, which deletes old checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from agentrl.commands.look import token_text


def checkpoint(run: Path, iteration: int) -> Path:
    """Makes the folder of a checkpoint that has a tokenizer of one word."""
    folder = run / f"checkpoints/it-{iteration:05}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    Tokenizer(WordLevel({"word": 0}, unk_token="word")).save(str(folder / "tokenizer.json"))
    return folder


def test_a_checkpoint_may_be_deleted_before_the_first_token_is_shown(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(path=tmp_path, info={})
    assert token_text(run) is None
    first = checkpoint(tmp_path, 1)
    decode = token_text(run)
    assert decode is not None
    checkpoint(tmp_path, 2)
    shutil.rmtree(first)
    assert decode(0) == "word"
