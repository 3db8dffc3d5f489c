"""Models, ranks and images that cannot be trained: each is refused by name, with a way out."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agentrl.training.model.attention import kernel_takes, tree_attention_forward
from agentrl.training.model.policy import Policy, choose_layout, decoder_layers
from agentrl.training.model.vision_inputs import TrainedSight, VisionInputs
from agentrl.training.parallel.ranks import named_failures
from agentrl.training.spmd import worker_loop
from agentrl.training.teacher import check_same_tokens
from agentrl.types.errors import RankFailed, RankUnreachable, RecipeError, TrainError
from agentrl.types.sample import TrainingSample
from tests.training.make import llama
from tests.vision.families import FAMILIES


def test_a_model_that_keeps_the_tree_from_its_attention_trains_by_rows() -> None:
    states = torch.zeros(1, 2, 3, 4)
    with pytest.raises(TrainError, match="Identity does not receive the pack's tree") as refused:
        tree_attention_forward(nn.Identity(), states, states, states, None)
    assert "train.packing: rows" in str(refused.value.remedy)


def test_a_model_without_the_attention_interface_is_refused_the_tree() -> None:
    model = llama()
    model._supports_attention_backend = False
    with pytest.raises(TrainError, match="does not use transformers' attention interface") as refused:
        choose_layout(Policy(model), "tree")
    assert refused.value.place == "LlamaForCausalLM"
    assert "train.packing: rows" in str(refused.value.remedy)


def test_a_torch_without_the_kernel_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert kernel_takes() == frozenset()


def test_a_body_without_a_list_of_layers_is_named() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = llama().config
            self.base_model = nn.Sequential(nn.Linear(2, 2))

    with pytest.raises(TrainError, match="the model has no list of decoder layers") as refused:
        decoder_layers(Flat())
    assert refused.value.place == "Flat"
    assert refused.value.remedy == "train without trainable.top_layers and activation_checkpointing"
    assert len(decoder_layers(llama())) == 2


def test_only_errors_of_memory_and_of_the_group_are_renamed() -> None:
    said = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError) as raised, named_failures("in a step"):
        raise said
    assert raised.value is said
    with pytest.raises(RankFailed, match="out of memory, in a step"), named_failures("in a step"):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def test_a_rank_that_loses_rank_0_says_where_the_reason_stands() -> None:
    lost = RankUnreachable("the other trainer ranks cannot be reached, waiting for the next call: reset by peer")

    def broadcast(value: Any) -> Any:
        raise lost

    ranks: Any = SimpleNamespace(broadcast=broadcast)
    with pytest.raises(RankUnreachable, match="rank 0 ended before its trainer did") as failed:
        worker_loop(ranks)
    assert failed.value.remedy == "see the output of rank 0"
    assert failed.value.__cause__ is lost


def vocabulary(**numbers: int) -> Any:
    return SimpleNamespace(get_vocab=lambda: numbers)


def test_a_teacher_with_other_tokens_is_refused_with_one_of_them() -> None:
    check_same_tokens(vocabulary(a=0, b=1), vocabulary(a=0, b=1, more=2))
    for teacher, there in ((vocabulary(a=0, b=2), "2"), (vocabulary(a=0), "None")):
        with pytest.raises(RecipeError) as refused:
            check_same_tokens(vocabulary(a=0, b=1), teacher)
        assert f"'b' is 1 for the policy and {there} for the teacher" in refused.value.message
        assert refused.value.place == "train.teacher.path"
        assert "a teacher with the policy's tokenizer" in str(refused.value.remedy)


def test_a_sample_with_an_image_that_is_not_its_own_is_refused() -> None:
    loaded = FAMILIES["qwen3_vl"]()
    assert loaded.processor is not None
    sight = TrainedSight(loaded.model, VisionInputs(loaded.processor, lambda sha: b"", 1 << 10))
    nothing = np.zeros(3, np.float32)
    sample = TrainingSample(np.array([5, -7, 6]), np.arange(3) > 1, nothing, nothing, "e", "g", 0)
    with pytest.raises(TrainError) as refused, sight.minibatch([sample]):
        raise AssertionError("no pack is computed")
    assert refused.value.message == "a prompt names an image that is not known"
    assert (refused.value.place, refused.value.remedy) == ("training samples", "give the image itself")
