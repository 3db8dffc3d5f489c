"""`agentrl export`: a checkpoint as a plain model of transformers, in a folder and on a hub, with its card. The hub is
one on this machine (`tests/hub.py`); huggingface_hub, transformers and peft are the real ones."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from ruamel.yaml import YAML
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import hub as transformers_hub

import agentrl
from agentrl.api.run_dirs import kept_checkpoint
from agentrl.store.checkpoints import checkpoints
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError, StoreError
from tests.checkpoint import shared
from tests.command import agentrl as command
from tests.command import sets
from tests.counting import CODE, VARIED, write
from tests.hub import Hub, environment, open_hub
from tests.hub_models import NAME, RECIPE, hub, models

__all__ = ["hub", "models"]

pytestmark = [pytest.mark.slow, pytest.mark.family("hub")]


@pytest.fixture(scope="session")
def adapted(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its training of two iterations, with adapters on the model at v1. The checkpoint
    before the first iteration counts as the best."""
    return shared(tmp_path_factory, "exported", partial(_train, models))


def _train(models: Path, here: Path) -> None:
    recipe = write(here / "counting", RECIPE)
    more = {
        "train.iterations": 2,
        "train.lora": {"rank": 2, "alpha": 4.0},
        "train.keep": {"last": 1, "best": "eval/episodes"},
        "eval.every": 1,
    }
    with open_hub() as hub:
        hub.put(NAME, models / "first", "v1")
        with environment(**hub.environment(here / "hf")):
            agentrl.train(str(recipe), overrides=more, out=here / "run", reporters=())


@pytest.fixture
def run(hub: Hub, adapted: Path, tmp_path: Path) -> Path:
    """The training in the working folder, with its recipe."""
    for name in ("counting", "run"):
        shutil.copytree(adapted / name, tmp_path / name)
    info = json.loads(Path("run/run.json").read_bytes())
    Path("run/run.json").write_text(json.dumps(info | {"base": str(tmp_path / "counting")}))
    return Path("run")


def logprobs(model: Any) -> torch.Tensor:
    ids = torch.arange(20, 60)[None]
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits.log_softmax(-1)


def plain(place: str | Path, **how: Any) -> torch.Tensor:
    return logprobs(AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **how))


def metadata(card: str) -> Any:
    return YAML(typ="safe").load(card.split("---")[1])


def test_from_a_hub_through_a_training_back_to_the_hub(hub: Hub, tmp_path: Path) -> None:
    """Command by command, as a user does it: the model at a revision, trained, exported, loaded back; the best
    checkpoint is kept and evaluated."""
    folder = write(tmp_path / "counting", RECIPE)
    (folder / "task.py").write_text(CODE + VARIED)
    variables = hub.environment(tmp_path / "hf")
    varied = "rewards.varied=./task.py:varied"
    trains = sets("train.keep={last: 1, best: eval/episodes}", "train.iterations=3", "eval.every=1", varied)
    command("train", "counting", "--out", "run", *trains, cwd=tmp_path, **variables)
    kept = [folder.name for folder in checkpoints(tmp_path / "run/checkpoints")]
    assert kept == ["it-00000", "it-00003"], "the last, and the first of the equally good ones"
    with RunDir.read("run") as trained:
        assert trained.info["recipe"]["model"]["revision"] == hub.repositories[NAME].refs["v1"]

    command("eval", "run", "--checkpoint", "best", "--out", "evaluated", cwd=tmp_path, **variables)
    with RunDir.read("evaluated") as evaluated:
        assert Path(evaluated.info["recipe"]["model"]["path"]).name == "it-00000"
    wrong = command("eval", "run", "--checkpoint", "2", "--out", "none", cwd=tmp_path, ok=False, **variables)
    assert "has no checkpoint '2'\n  -> it has: it-00000, it-00003" in wrong.stderr

    said = command("export", "run", "--to", "hf:counter", "--json", cwd=tmp_path, **variables)
    done, pushed = json.loads(said.stdout), hub.repositories["me/counter"]
    assert done == {"place": f"{hub.url}/me/counter", "checkpoint": "it-00003", "commit": pushed.refs["main"]}
    assert pushed.private
    assert not {"trainer.pt", "state.json"} & set(pushed.main)
    card = pushed.main["README.md"].decode()
    commit = hub.repositories[NAME].refs["v1"]
    assert metadata(card)["base_model"] == NAME
    assert f"[{NAME}]({hub.url}/{NAME}) at `{commit}`" in card
    assert "agentrl train counting --out run --set 'train.keep={last: 1, best: eval/episodes}'" in card

    ours = plain(tmp_path / "run/checkpoints/it-00003")
    assert torch.equal(plain("me/counter"), ours)
    assert not torch.equal(plain(NAME, revision=commit), ours), "it has learned something"
    assert AutoTokenizer.from_pretrained("me/counter").chat_template


def test_a_folder_has_merged_weights_or_adapters_that_name_their_base(run: Path, hub: Hub) -> None:
    newest = kept_checkpoint(run)
    done = agentrl.export(run, "whole", checkpoint=2)
    assert (done.place, done.checkpoint, done.commit) == ("whole", "it-00002", None)
    assert torch.equal(plain("whole"), plain(newest))
    assert not (Path("whole") / "adapter").exists()
    assert torch.equal(plain(agentrl.export(run, "first", checkpoint="best").place), plain(NAME, revision="v1"))

    agentrl.export(run, "hf:adapted", adapter=True)
    files = hub.repositories["me/adapted"].main
    assert not {"model.safetensors", "config.json"} & set(files)
    named = json.loads(files["adapter_config.json"])
    commit = hub.repositories[NAME].refs["v1"]
    assert (named["base_model_name_or_path"], named["revision"]) == (NAME, commit)
    adapted = AutoPeftModelForCausalLM.from_pretrained("me/adapted", dtype=torch.float32)
    assert torch.allclose(logprobs(adapted), plain(newest), atol=1e-5)
    card = files["README.md"].decode()
    assert metadata(card)["library_name"] == "peft"
    assert metadata(card)["base_model_relation"] == "adapter"
    recorded = (newest / "adapter" / "adapter_config.json").read_text()
    assert NAME not in recorded, "the run is only read"


def test_transformers_asks_the_hub_of_its_test(hub: Hub, tmp_path: Path) -> None:
    """The port of an earlier hub may have become another's."""
    assert transformers_hub.hf_api().endpoint == hub.url
    with open_hub() as other, environment(**other.environment(tmp_path / "other")):
        assert transformers_hub.hf_api().endpoint == other.url
    assert transformers_hub.hf_api().endpoint == hub.url


def test_a_tokenizer_keeps_all_of_its_templates(run: Path) -> None:
    newest = kept_checkpoint(run)
    tokenizer = AutoTokenizer.from_pretrained(newest)
    tokenizer.chat_template = {"default": tokenizer.chat_template, "tool_use": "{{ messages }}"}
    tokenizer.save_pretrained(newest)
    for to, adapter in (("whole", False), ("adapters", True)):
        agentrl.export(run, to, adapter=adapter)
        assert AutoTokenizer.from_pretrained(to).chat_template == tokenizer.chat_template


def test_a_folder_that_is_gone_is_no_model_of_the_hub(run: Path, hub: Hub) -> None:
    info = json.loads((run / "run.json").read_bytes())
    info["recipe"]["model"] |= {"path": "models/first", "revision": None}
    (run / "run.json").write_text(json.dumps(info))
    with pytest.raises(StoreError, match="models/first, a model of this machine alone"):
        agentrl.export(run, "hf:adapted", adapter=True)
    agentrl.export(run, "whole")
    assert "base_model" not in metadata(Path("whole/README.md").read_text())


def test_what_was_pushed_before_is_not_loaded_instead(run: Path, hub: Hub) -> None:
    """transformers loads adapters before a model, and one file of weights before several."""
    agentrl.export(run, "hf:mine", adapter=True)
    mine = hub.repositories["me/mine"]
    mine.commit({**mine.main, "model-00001-of-00002.safetensors": b"", "model.safetensors.index.json": b"{}", "a": b""})
    agentrl.export(run, "hf:mine", checkpoint="best")
    assert {name for name in mine.main if name == "a" or "model" in name} == {"a", "model.safetensors"}
    assert torch.equal(plain("me/mine"), plain(kept_checkpoint(run, "best")))
    agentrl.export(run, "hf:mine", adapter=True)
    assert not {"model.safetensors", "config.json"} & set(mine.main)


def test_the_card_says_what_was_trained_and_measured(run: Path, models: Path) -> None:
    certificate = {
        "recipe": "counting", "certified": True, "tasks": 40, "threshold": 1.0, "date": "2026-01-02T03:04:05",
        "version": "0", "environment": "other", "findings": [],
    }  # fmt: skip
    Path("counting/counting.certificate.json").write_text(json.dumps(certificate))
    agentrl.export(run, "best", checkpoint="best")
    agentrl.export(run, "last")
    best, last = (Path(name, "README.md").read_text() for name in ("best", "last"))
    with RunDir.read(run) as reader:
        measured = {(line["split"], line["iteration"]): line for line in reader.metrics()}
    turns = measured["train", 2]["turns"], measured["eval", 2]["turns"]
    assert "| training, iteration 2 | evaluation after iteration 2 |" in last
    assert f"| `turns` | {turns[0]:.4g} | {turns[1]:.4g} |" in last
    assert "|  | evaluation after iteration 0 |" in best
    assert "`it-00000`, after step 0, the best by `eval/episodes` |" in best
    for card in (best, last):
        assert "| recipe | `counting` |" in card
        assert "| credit estimator | `grpo` |" in card
        assert "| adapters | LoRA of rank 2, alpha 4 |" in card
        assert "certified on 40 tasks, 2026-01-02, before the environment changed" in card
        assert "pip install 'agentrl-framework[train,lora]==" in card


def test_a_folder_that_cannot_be_written_is_said_and_nothing_changes(run: Path) -> None:
    before = sorted(str(path) for path in Path().rglob("*"))
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    for place, words in (
        ("full", "full: the folder is not empty"),
        ("file", "file: is a file"),
        ("file/inside", "file/inside: cannot be written: File exists: file"),
        ("/proc/exported", "/proc/exported: cannot be written: No such file or directory"),
        ("run/exported", "run/exported: lies in the run directory"),
    ):
        with pytest.raises(StoreError) as caught:
            agentrl.export(run, place)
        assert words in str(caught.value)
        assert "--to another folder; the run still has the checkpoint" in str(caught.value)
    assert sorted(str(path) for path in Path().rglob("*")) == sorted([*before, "full", "full/mine.txt", "file"])
    agentrl.export(run, "full/inside")
    assert sorted(path.name for path in Path("full").iterdir()) == ["inside", "mine.txt"]


def test_a_disk_that_fills_leaves_no_half_of_a_model(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, to: Path) -> None:
        to.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StoreError, match="exported: cannot be written: No space left on device"):
        agentrl.export(run, "exported")
    assert not [path for path in Path().iterdir() if "exported" in path.name]


def test_what_the_hub_does_not_take_is_said(run: Path, hub: Hub, tmp_path: Path) -> None:
    def refused(to: str = "hf:mine", **how: Any) -> str:
        with pytest.raises(StoreError) as caught:
            agentrl.export(run, to, **how)
        return str(caught.value)

    with environment(HF_TOKEN=""):
        said = refused()
    assert said.startswith("hf:mine: the Hub does not know who pushes mine\n  -> give a token that may write")
    assert "The run still has the checkpoint" in said
    with environment(HF_ENDPOINT="http://127.0.0.1:9"):
        assert "hf:mine: the Hub cannot be reached: ConnectionRefusedError" in refused()
    with environment(HF_HUB_OFFLINE="1"):
        assert "the Hub cannot be reached: OfflineModeIsEnabled" in refused()
    assert "'a/b/c' is no name of the Hugging Face Hub" in refused("hf:a/b/c")
    hub.full = True
    assert "hf:mine: the Hub refuses mine: the storage limit is reached\n" in refused()
    assert set(hub.repositories["me/mine"].main) == {".gitattributes"}, "a commit is whole or not there"
    hub.full = False
    assert agentrl.export(run, "hf:mine").commit == hub.repositories["me/mine"].refs["main"]

    assert "the repository exists and is private" in refused(public=True)
    agentrl.export(run, "hf:me/open", public=True)
    assert not hub.repositories["me/open"].private
    assert "the repository exists and anybody may read it" in refused("hf:me/open")
    assert "only a repository of the Hub is public" in refused("folder", public=True)


def test_what_a_checkpoint_lacks_is_said(run: Path, hub: Hub, models: Path) -> None:
    with pytest.raises(RecipeError, match="has no checkpoint '1'"):
        agentrl.export(run, "other", checkpoint=1)
    checkpoint = kept_checkpoint(run)
    shutil.rmtree(checkpoint / "adapter")
    with pytest.raises(StoreError, match="the checkpoint has no adapters"):
        agentrl.export(run, "other", adapter=True)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(StoreError, match="the checkpoint holds no weights"):
        agentrl.export(run, "other")


def test_adapters_of_a_model_that_others_lack_are_not_pushed(hub: Hub, models: Path) -> None:
    recipe = write(Path("counting"), RECIPE.replace("  revision: v1\n", ""))
    more = {"model.path": str(models / "first"), "train.lora": {"rank": 2, "alpha": 4.0}}
    trained = agentrl.train(str(recipe), overrides=more, out="own", reporters=())
    assert trained is not None
    with pytest.raises(StoreError, match="a model of this machine alone"):
        agentrl.export(trained, "hf:adapted", adapter=True)
    assert not hub.asked
    agentrl.export(trained, "adapted", adapter=True)
    adapted = AutoPeftModelForCausalLM.from_pretrained("adapted", dtype=torch.float32)
    assert torch.allclose(logprobs(adapted), plain(kept_checkpoint(trained.path)), atol=1e-5)
