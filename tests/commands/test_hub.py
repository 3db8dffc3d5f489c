"""Models of the Hugging Face Hub: loaded at a revision, recorded by commit, used without a network, and refused in
words. The hub is one on this machine (`tests/hub.py`); huggingface_hub is the real one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import agentrl
from agentrl.config.model import ModelSettings
from agentrl.models.hub import download, in_cache
from agentrl.models.load import chat_tokenizer, count_layers, fetch_model, find_model, load_model, sees
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError, StoreError
from tests.command import agentrl as command
from tests.command import sets
from tests.counting import write
from tests.hub import Hub, environment
from tests.hub_models import NAME, RECIPE, hub, models

pytestmark = [pytest.mark.slow, pytest.mark.family("hub")]

__all__ = ["hub", "models"]


def weights(settings: ModelSettings) -> torch.Tensor:
    return load_model(settings, seed=0).model.get_input_embeddings().weight.detach()


def of(folder: Path) -> torch.Tensor:
    return weights(ModelSettings(path=str(folder), device="cpu"))


def test_a_model_is_loaded_at_its_revision_and_from_the_cache_afterwards(hub: Hub, models: Path) -> None:
    named = ModelSettings(path=NAME, device="cpu")
    assert find_model(NAME) is None
    assert (sees(named), sees(named, unknown=False), count_layers(named)) == (True, False, None)
    assert not hub.asked, "looking for a model asks nobody"
    at_v1 = named.model_copy(update={"revision": "v1"})
    assert torch.equal(weights(named), of(models / "second"))
    assert torch.equal(weights(at_v1), of(models / "first"))
    assert chat_tokenizer(at_v1).stop_ids == chat_tokenizer(named).stop_ids
    hub.asked.clear()
    assert fetch_model(NAME, "v1").name == hub.repositories[NAME].refs["v1"]
    assert not hub.asked


def test_a_model_that_sees_comes_with_its_processor(hub: Hub, models: Path) -> None:
    commit = hub.put("agentrl-tests/eyes", models / "eyes")
    loaded = load_model(ModelSettings(path="agentrl-tests/eyes", revision=commit, device="cpu"), seed=0)
    assert loaded.processor is not None


def test_a_part_of_a_model_in_the_cache_is_no_model(hub: Hub) -> None:
    """An interrupted download, or a program that took the configuration alone, leaves such a cache."""
    from huggingface_hub import hf_hub_download

    hf_hub_download(NAME, "config.json")
    assert in_cache(NAME, None) is None
    for apart in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        with environment(**apart), pytest.raises(RecipeError, match=f"{NAME} is not on this machine"):
            download(NAME, None)
    folder = fetch_model(NAME)
    assert in_cache(NAME, None) == folder
    weights = folder / "model.safetensors"
    (folder / "tf_model.h5.index.json").write_text('{"weight_map": {"a": "tf_model-00001-of-00002.h5"}}')
    assert in_cache(NAME, None) == folder, "of another library"
    weights.rename(folder / "model-00001-of-00002.safetensors")
    assert in_cache(NAME, None) is None, "the index, which names the others, comes after the first of several"
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert in_cache(NAME, None) is None


def test_weights_that_a_repository_holds_twice_are_downloaded_once(hub: Hub) -> None:
    files = hub.repositories[NAME].main
    copies = ("consolidated.safetensors", "original/model.safetensors")
    commit = hub.repositories[NAME].commit(files | dict.fromkeys(copies, b"large"))
    folder = fetch_model(NAME, commit)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(files)


@pytest.mark.parametrize(
    ("name", "revision", "words", "remedy"),
    [
        (NAME, "v9", f"{NAME} has no revision 'v9'", "a branch, a tag or a commit of"),
        (
            "agentrl-tests/none",
            None,
            "there is no model agentrl-tests/none that this",
            "hf auth login",
        ),
        ("agentrl-tests/gated", None, "agentrl-tests/gated is gated", "ask for access at"),
        ("agentrl-tests/private", None, "there is no model agentrl-tests/private", "a private one needs a token"),
        ("agentrl-tests/a--b", None, "'agentrl-tests/a--b' is no name of the Hugging Face Hub", "OWNER/NAME"),
    ],
)
def test_what_the_hub_does_not_give_is_named(
    name: str, revision: str | None, words: str, remedy: str, hub: Hub, models: Path
) -> None:
    hub.put("agentrl-tests/gated", models / "first", gated=True)
    hub.put("agentrl-tests/private", models / "first")
    hub.repositories["agentrl-tests/private"].private = True
    recipe = write(Path("counting"), RECIPE)
    with environment(HF_TOKEN=""), pytest.raises(RecipeError) as caught:
        agentrl.rollout(str(recipe), 1, overrides={"model.path": name, "model.revision": revision}, reporters=())
    assert words in caught.value.message
    assert remedy in str(caught.value.remedy)
    assert str(caught.value.place).startswith("--set model.path=")
    assert not Path("runs").exists()


def test_without_network_and_cache_the_line_and_the_command_are_said(hub: Hub, tmp_path: Path) -> None:
    write(tmp_path / "counting", RECIPE)
    offline = {**hub.environment(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    gone = {**offline, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    for verb, variables in (("train", offline), ("rollout", gone), ("eval", offline)):
        said = command(verb, "counting", cwd=tmp_path, ok=False, **variables)
        assert said.returncode == 1
        assert f"counting/recipe.yaml:{7 + 1}: model.path: {NAME} is not on this machine" in said.stderr
        assert f"hf download {NAME} --revision v1" in said.stderr
    said = command("recipe", "check", "counting", cwd=tmp_path, **offline)
    assert f"{NAME} at v1 (Hugging Face Hub: downloaded when it is first loaded)" in said.stdout
    assert not hub.asked
    assert not (tmp_path / "runs").exists()


def test_a_prepared_cache_is_all_that_a_command_needs(hub: Hub, tmp_path: Path) -> None:
    fetch_model(NAME, "v1")
    shutil.move(tmp_path / "hf", tmp_path / "brought")
    hub.asked.clear()
    write(tmp_path / "counting", RECIPE)
    variables = {**hub.environment(tmp_path / "brought"), "HF_HUB_OFFLINE": "1"}
    command("rollout", "counting", "--n", "2", "--out", "run", cwd=tmp_path, **variables)
    assert not hub.asked
    with RunDir.read(tmp_path / "run") as run:
        assert run.info["models"] == {f"{NAME}@v1": hub.repositories[NAME].refs["v1"]}


def test_a_run_goes_on_with_the_commit_that_it_has_recorded(hub: Hub, models: Path) -> None:
    recipe = str(write(Path("counting"), RECIPE))
    main = {"model.revision": None}
    first = hub.repositories[NAME].refs["main"]
    run = agentrl.rollout(recipe, 2, overrides=main, out="run", reporters=())
    assert run.info["models"] == {NAME: first}
    assert run.info["recipe"]["model"]["revision"] == first
    moved = hub.put(NAME, models / "first")
    agentrl.rollout(recipe, 3, overrides=main, out="run", reporters=())
    with RunDir.read("run") as again:
        assert len(again.ids()) == 3
        assert again.info["recipe"]["model"]["revision"] == first
    assert agentrl.rollout(recipe, 1, overrides=main, out="new", reporters=()).info["models"] == {NAME: moved}
    with pytest.raises(StoreError, match=f"model.revision: '{first}' -> "):
        agentrl.rollout(recipe, 3, overrides={"model.revision": "v1"}, out="run", reporters=())


def test_policies_and_teachers_have_revisions_of_their_own(hub: Hub) -> None:
    more = {
        "policies": {"other": {"checkpoint": NAME, "revision": "v1"}},
        "train.teacher": {"path": NAME, "revision": "v1"},
        "train.kl": {"coef": 0.1, "to": "teacher"},
        "model.revision": None,
    }
    run = agentrl.train(str(write(Path("counting"), RECIPE)), overrides=more, out="run", reporters=())
    assert run is not None
    refs = hub.repositories[NAME].refs
    assert run.info["models"] == {NAME: refs["main"], f"{NAME}@v1": refs["v1"]}
    recorded = run.info["recipe"]
    assert recorded["policies"]["other"]["revision"] == recorded["train"]["teacher"]["revision"] == refs["v1"]
    assert recorded["model"]["revision"] == refs["main"]
    assert json.loads(Path("run/run.json").read_bytes())["models"] == run.info["models"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.path=./folder", "is no name of the Hugging Face Hub, and has no revision 'v1'"),
        ("model={scratch: {}, revision: v1}", "a scratch model has no 'revision'"),
        ("policies={other: {script: oracle, revision: v1}}", "'revision' is of a name of the Hugging Face Hub"),
        ("policies={other: {checkpoint: ./folder, revision: v1}}", "and has no revision 'v1'"),
    ],
)
def test_a_revision_of_something_else_is_refused(override: str, words: str, models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "first", tmp_path / "folder")
    write(tmp_path / "counting", RECIPE.replace("  revision: v1\n", "") if "policies" in override else RECIPE)
    said = command("recipe", "check", "counting", *sets(override), cwd=tmp_path, ok=False)
    assert said.returncode == 1
    assert words in " ".join(said.stderr.split())
