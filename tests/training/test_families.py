"""Families beyond plain decoders: mixtures of experts, sinks, score caps, linear attention. Tiny random models."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.config.train import LoraSettings, TrainSettings
from agentrl.models.load import attention_for
from agentrl.training.model.routers import balance_loss
from agentrl.training.trainer import Trainer
from agentrl.types.errors import TrainError

from .make import SIZES, make_rows

EXPERTS = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8)
LINEAR = dict(
    head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8
)
FAMILIES = {
    "qwen3_moe": (EXPERTS, "tree"),
    "gpt_oss": ({**EXPERTS, "sliding_window": 8}, "rows"),
    "gemma2": ({"head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}, "rows"),
    "olmo3": ({"sliding_window": 8}, "tree"),
    "qwen3_5_text": (LINEAR, "rows"),
    "deepseek_v3": (
        dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
             num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_group=1,
             topk_group=1, n_shared_experts=1, first_k_dense_replace=1),
        "tree",
    ),
}  # fmt: skip


def build(family: str, **changes):
    torch.manual_seed(0)
    own = FAMILIES[family][0] if family in FAMILIES else {}
    config = AutoConfig.for_model(family, **{**SIZES, **own, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention_for(config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.0)  # or attention would hardly differ from a mean
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_the_models_own_pass(family):
    model, rows = build(family), make_rows()
    own = copy.deepcopy(model)
    trainer = Trainer(model, TrainSettings(token_budget=100))
    assert trainer.policy.layout == FAMILIES[family][1]
    assert (trainer.unpacked is None) == (trainer.policy.layout == "tree")
    for row, ours in zip(rows, trainer.logprobs(rows), strict=True):
        ids = torch.from_numpy(row.token_ids)
        with torch.no_grad():
            every = own(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(-1)
        theirs = every[:-1].gather(1, ids[1:, None])[:, 0].numpy()
        assert np.abs(ours[1:] - theirs)[row.loss_mask[1:]].max() < 1e-5
    assert trainer.update(rows, seed=0)["grad_norm"] > 0


def test_weights_of_experts_have_the_names_of_checkpoints(tmp_path):
    for family in ("qwen3_moe", "mixtral"):
        trainer = Trainer(build(family, **EXPERTS), TrainSettings())
        sent = trainer.weights("bfloat16", checkpoint_names=True)
        trainer.model.save_pretrained(tmp_path / family)
        with safe_open(tmp_path / family / "model.safetensors", "pt") as file:
            assert set(file.keys()) <= set(sent) <= set(file.keys()) | {"lm_head.weight"}
            for name in file.keys():  # noqa: SIM118
                assert torch.equal(file.get_tensor(name).bfloat16(), sent[name])


def test_adapters_on_all_layers_are_refused_where_experts_would_be_left_out():
    with pytest.raises(
        TrainError, match=r"(?s)experts are not linear layers.*train.lora.targets|train.lora.targets.*experts"
    ):
        Trainer(build("qwen3_moe"), TrainSettings(lora=LoraSettings(rank=2)))
    named = Trainer(build("qwen3_moe"), TrainSettings(lora=LoraSettings(rank=2, targets=["q_proj", "v_proj"])))
    assert named.update(make_rows(), seed=0)["grad_norm"] > 0


def test_the_routers_loss_is_that_of_transformers():
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    torch.manual_seed(0)
    said = tuple(torch.randn(50, 8) for _ in range(3))
    assert balance_loss(said, 2).item() == pytest.approx(load_balancing_loss_func(said, 8, 2).item(), rel=1e-6)


def test_routers_are_balanced_by_the_weight_of_the_model_or_of_the_recipe():
    rows = make_rows()
    metrics, gradients = {}, {}
    for weight in (None, 0.0, 1.0):
        trainer = Trainer(build("qwen3_moe"), TrainSettings(router_loss=weight, token_budget=60, max_grad_norm=1e9))
        routers = [p for name, p in trainer.model.named_parameters() if name.endswith("mlp.gate.weight")]
        before = [p.detach().clone() for p in routers]
        metrics[weight] = trainer.update(rows, seed=0)
        gradients[weight] = sum(float((a - b.detach()).norm()) for a, b in zip(before, routers, strict=True))
    assert "router_loss" not in metrics[0.0]
    assert metrics[None]["router_loss"] == pytest.approx(metrics[1.0]["router_loss"])
    assert metrics[None]["router_loss"] >= 2 * 0.99  # balanced: as many experts as each token goes to
    assert metrics[1.0]["grad_norm"] > metrics[0.0]["grad_norm"] * 1.01
    with pytest.raises(TrainError, match="train.router_loss"):
        Trainer(build("olmo3"), TrainSettings(router_loss=0.1))
