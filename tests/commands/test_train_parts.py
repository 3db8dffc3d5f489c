"""`agentrl train` with a part of the model, and in two processes: same recipe, one checkpoint format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.counting import metrics
from tests.sound import assert_sound

from .test_train import train
from .test_train_ranks import on_two_ranks

pytestmark = pytest.mark.slow

ADAPTERS = """\
agent: {format: tags, max_turns: 6, describe_tools: false}
model: {path: %s, dtype: bfloat16}
sampling: {max_tokens: 8}
credit: {use: gigpo}
train:
  {iterations: 3, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3, precision: bfloat16, lora: {rank: 4},
   kl: {coef: 0.01, estimator: k3}, activation_checkpointing: true, logits_mb: 1}
"""


@pytest.fixture
def adapting(counting: Path, trained_model: Path) -> Path:
    """The recipe with adapters on a model that was trained a little; the folder that all lies in."""
    with (counting / "recipe.yaml").open("a") as file:
        file.write(ADAPTERS % trained_model)
    return counting.parent


def test_two_processes_train_adapters_and_one_goes_on(adapting: Path, trained_model: Path) -> None:
    here = adapting
    assert on_two_ranks(here, (None, ("--out", "run", "--set", "train.iterations=2"))) == [[0, 0]]
    first, _ = metrics(here / "run")
    assert first["ratio_mean"] == pytest.approx(1.0)
    assert first["kl_ref"] == pytest.approx(0.0, abs=1e-6)
    train(here, "run")
    assert [m["iteration"] for m in metrics(here / "run")] == [1, 2, 3]
    # Not in the second iteration, if the first had no success to learn from.
    assert metrics(here / "run")[-1]["kl_ref"] > 0
    assert_sound(here / "run")
    newest = here / "run" / "checkpoints" / "it-00003"
    merged = AutoModelForCausalLM.from_pretrained(newest)
    assert merged.dtype == torch.float32
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(trained_model)
    start = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    adapted = PeftModel.from_pretrained(base, newest / "adapter").merge_and_unload()
    for name, tensor in merged.state_dict().items():
        assert torch.allclose(tensor, adapted.state_dict()[name], atol=1e-6), name
    changed = [name for name, tensor in start.items() if not torch.equal(tensor, merged.state_dict()[name])]
    assert changed
    assert all("_proj." in name for name in changed)
    with RunDir.read(here / "run") as reader:
        gaps = [m["mismatch_mean"] for m in reader.metrics() if m["split"] == "train"]
    assert max(gaps) < 0.05  # both in bfloat16, in batches of different shapes


def test_adapters_on_a_model_from_nothing_are_refused(trainable: Path) -> None:
    refused = agentrl("train", "counting", "--set", "train.lora={}", cwd=trainable.parent, ok=False)
    assert refused.returncode != 0
    assert "train.lora" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr


PULLED = """
from agentrl.training.losses.loss import Loss

def pulled(batch, settings):
    "A policy gradient with a pull to the reference."
    ratio = batch.ref_log_ratio
    return -batch.advantage * batch.logprob + 0.5 * ratio.pow(2), ratio != ratio

PULLED = Loss("pulled", pulled, needs=("reference",))
"""


def test_a_loss_of_ones_own_trains_with_the_reference_that_it_asks_for(counting: Path, trained_model: Path) -> None:
    """Without `train.kl`, and with the same one after the training was continued."""
    (counting / "losses.py").write_text(PULLED)
    with (counting / "recipe.yaml").open("a") as file:
        file.write(
            ADAPTERS.replace("lora: {rank: 4},", "loss: ./losses.py:PULLED,").replace(
                "kl: {coef: 0.01, estimator: k3}, ", ""
            )
            % trained_model
        )
    here = counting.parent
    assert agentrl("recipe", "check", "counting", cwd=here).returncode == 0
    train(here, "run", "--set", "train.iterations=2")
    train(here, "run")
    train(here, "whole")
    assert_sound(here / "run")
    first, *_ = [m for m in metrics(here / "whole") if m["split"] == "train"]
    assert first["loss"] is not None
    assert metrics(here / "run")[-1]["loss"] == pytest.approx(metrics(here / "whole")[-1]["loss"], abs=1e-6)
