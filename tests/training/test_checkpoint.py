from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.config.train import TrainSettings
from agentrl.store.checkpoints import latest
from agentrl.training import checkpoint
from agentrl.training.trainer import Trainer
from agentrl.types.errors import StoreError

from .make import llama, make_rows, write_checkpoint


def save(folder: Path, model, trainer: Trainer, **extra) -> None:
    write_checkpoint(
        folder, model, lambda to: (Path(to) / "tokenizer.json").write_text("{}"), trainer.state_dict(), extra
    )


def test_a_checkpoint_continues_the_training_bit_by_bit(tmp_path):
    model, rows = llama(), make_rows()
    trainer = Trainer(model, TrainSettings(lr=1e-3, minibatch=2))
    trainer.update(rows, 0)
    save(tmp_path / "it-00001", model, trainer, iteration=1)
    trainer.update(rows, 1)

    found = latest(tmp_path)
    assert found == tmp_path / "it-00001"
    assert (found / "tokenizer.json").exists()
    again = AutoModelForCausalLM.from_pretrained(found)
    resumed = Trainer(again, TrainSettings(lr=1e-3, minibatch=2))
    saved = checkpoint.load_state(found)
    resumed.load_state_dict(saved.trainer)
    assert saved.extra == {"iteration": 1}
    resumed.update(rows, 1)
    for name, p in model.named_parameters():
        assert torch.equal(p, again.get_parameter(name)), name


def test_latest_passes_over_torn_folders(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None
    model = llama()
    trainer = Trainer(model, TrainSettings())
    save(tmp_path / "it-00002", model, trainer)
    (tmp_path / "it-00009").mkdir()  # no state.json: copied by hand and cut off
    (tmp_path / ".new-it-00010").mkdir()
    (tmp_path / ".new-it-00010" / "state.json").write_text("{}")
    assert latest(tmp_path) == tmp_path / "it-00002"


def test_saving_again_replaces_and_draws_nothing(tmp_path, capfd):
    model = llama()
    trainer = Trainer(model, TrainSettings())
    save(tmp_path / "it-00001", model, trainer, iteration=1)
    save(tmp_path / "it-00001", model, trainer, iteration=7)
    assert checkpoint.load_state(tmp_path / "it-00001").extra == {"iteration": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["it-00001"]
    assert capfd.readouterr() == ("", "")


def test_others_may_read_all_of_a_checkpoint(tmp_path):
    model = llama()
    save(tmp_path / "it-00001", model, Trainer(model, TrainSettings()))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "it-00001").rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes
    assert "model.safetensors" in modes


def test_prune_keeps_the_last_and_clears_leftovers(tmp_path):
    model = llama()
    trainer = Trainer(model, TrainSettings())
    for number in (3, 10, 7):
        save(tmp_path / f"it-{number:05d}", model, trainer)
    (tmp_path / ".new-it-00011").mkdir()
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it-00007", "it-00010"]
    with pytest.raises(ValueError, match="keep=0"):
        checkpoint.prune(tmp_path, keep=0)


class Heavy:
    """A model whose weights fit on no disk: what safetensors says then."""

    def save_pretrained(self, to: str, state_dict: object) -> None:
        (Path(to) / "half.safetensors").write_text("half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("file", ["model", "trainer.pt", "state.json"])
def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path, file):
    model = llama()
    trainer = Trainer(model, TrainSettings())
    trainer.update(make_rows(), 0)
    save(tmp_path / "it-00001", model, trainer, iteration=1)

    def point_at_the_full_disk(to):
        (Path(to) / file).symlink_to("/dev/full")

    full = Heavy() if file == "model" else model
    with pytest.raises(StoreError, match=r"it-00002: the disk is full[\s\S]*-> free disk space"):
        write_checkpoint(tmp_path / "it-00002", full, point_at_the_full_disk, trainer.state_dict(), {"iteration": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["it-00001"], "what was half written holds no room"
    assert checkpoint.load_state(latest(tmp_path)).extra == {"iteration": 1}


def test_another_failure_of_saving_is_told_as_it_is(tmp_path):
    def bang(to):
        raise PermissionError(13, "not yours")

    with pytest.raises(PermissionError, match="not yours"):
        write_checkpoint(tmp_path / "it-00001", llama(), bang, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_named(tmp_path):
    model = llama()
    save(tmp_path / "it-00001", model, Trainer(model, TrainSettings()))
    (tmp_path / "it-00001" / "trainer.pt").write_bytes(b"torn")
    with pytest.raises(StoreError, match="not a whole checkpoint") as error:
        checkpoint.load_state(tmp_path / "it-00001")
    assert error.value.place == str(tmp_path / "it-00001")


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    model = llama()
    trainer = Trainer(model, TrainSettings())
    save(tmp_path / "it-00001", model, trainer, iteration=1)
    (tmp_path / "it-00001").rename(tmp_path / ".old-it-00001")
    assert checkpoint.load_state(latest(tmp_path)).extra == {"iteration": 1}
    checkpoint.prune(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["it-00001"]


CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def killed_at(change: int, root: Path, model) -> bool:
    """Saves two checkpoints, one of which is there already, and drops the other. Killed at so many changes of files."""
    child = os.fork()
    if child == 0:
        seen = itertools.count(1)

        def hook(event: str, args: tuple) -> None:
            # Those within a folder that is removed have no path.
            ours = event in ("os.remove", "os.rmdir") or (event in CHANGES and str(args[0]).startswith(str(root)))
            if ours and next(seen) == change:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        for name in ("it-00000", "it-00001"):
            write_checkpoint(root / name, model, None, {"number": change}, {"number": change})
        checkpoint.prune(root, keep=1)
        os._exit(0)
    return bool(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_kill_9_in_the_middle_of_saving_leaves_whole_checkpoints(tmp_path):
    """Killed at every change of a file: a checkpoint is always there, and whole."""
    model, unfinished = llama(), set()
    write_checkpoint(tmp_path / "it-00000", model, None, {"number": 0}, {"number": 0})
    change = 1
    while killed_at(change, tmp_path, model):
        unfinished |= {path.name.split("-")[0] for path in tmp_path.iterdir() if path.name.startswith(".")}
        saved = checkpoint.load_state(latest(tmp_path))
        assert saved.trainer["number"] == saved.extra["number"]
        assert load_file(latest(tmp_path) / "model.safetensors").keys() <= model.state_dict().keys()
        change += 1
    assert unfinished == {".new", ".old", ".gone"}, "kills struck at every stage"
    assert [path.name for path in tmp_path.iterdir()] == ["it-00001"]
