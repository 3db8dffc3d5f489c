"""Where a model is found and loaded, and what is said where it cannot be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.models import load
from agentrl.models.load import load_model, model_folder
from agentrl.types.errors import MissingExtra, RecipeError

SCRATCH = ScratchModel(hidden=16, layers=1)


def test_a_scratch_model_has_no_folder_yet() -> None:
    with pytest.raises(RecipeError, match="lies in no folder until it was trained") as refused:
        model_folder(ModelSettings(scratch=SCRATCH))
    assert (refused.value.place, refused.value.remedy) == ("model", "point model.path at a checkpoint")


def test_a_gpu_that_is_asked_for_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RecipeError, match="there is no CUDA device") as refused:
        load_model(ModelSettings(scratch=SCRATCH, device="cuda"), texts=["one two"], seed=0)
    assert (refused.value.place, refused.value.remedy) == ("model.device", "agentrl doctor says what it sees")


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSettings:
    """A file that `convert` of a test is to convert."""
    (tmp_path / "small.gguf").touch()
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(load, "_need", lambda package, extra: None)
    return ModelSettings(path=str(tmp_path / "small.gguf"))


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_gguf_file_without_a_package_names_the_extra(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.gguf").touch()
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else there("json"))
    monkeypatch.setattr(load, "require_versions", lambda extra: None)
    with pytest.raises(MissingExtra, match=rf"{package}[\s\S]*agentrl-framework\[gguf\]"):
        model_folder(ModelSettings(path=str(tmp_path / "small.gguf")))


def test_of_two_conversions_at_once_the_first_is_taken(
    gguf: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(file: Path, partial: Path) -> None:
        (partial / "by").write_text("this process")
        if not others:
            others.append(partial.with_name("other"))
            first = model_folder(gguf)  # another process, which is quicker
            (first / "by").write_text("another process")

    others: list[Path] = []
    monkeypatch.setattr(load, "_convert", convert)
    folder = model_folder(gguf)
    assert (folder / "by").read_text() == "another process"
    assert list(folder.parent.iterdir()) == [folder], "nothing partial is left"
    assert model_folder(gguf) == folder


def test_a_conversion_that_cannot_be_kept_is_an_error(
    gguf: ModelSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(load, "_convert", lambda file, partial: None)
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError, match="Permission denied"):
        model_folder(gguf)
    assert list((tmp_path / "cache/models").iterdir()) == []
