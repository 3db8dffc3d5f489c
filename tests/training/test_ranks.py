"""Two processes with a shard of the model each come to what one comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import full_state_dict
from tests.command import python

from .make import llama, make_rows
from .on_ranks import CASES, LEARNERS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Alone, and on two ranks."""
    files = [str(folder / name) for name in ("one", "two")]
    python("-m", "tests.training.on_ranks", *files, cwd=ROOT)
    one, two = (torch.load(file, weights_only=False) for file in files)
    return one, two


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_take_the_steps_of_one(results, case):
    one, two = results[0][case], results[1][case]
    assert (one["logprobs"] - two["logprobs"]).abs().max() < 1e-6
    assert len(one["gradients"]) == len(two["gradients"]) > 1
    # Later steps start from weights that already differ by rounding, which Adam's division magnifies.
    assert (one["gradients"][0] - two["gradients"][0]).norm() < 1e-6 * one["gradients"][0].norm()
    for ours, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert ours.keys() == theirs.keys()
        same = [name for name in ours if name not in ("forwarded", "packing_ratio")]
        assert {n: ours[n] for n in same} == pytest.approx({n: theirs[n] for n in same}, rel=1e-4, abs=1e-5)
    assert one["weights"].keys() == two["weights"].keys()
    for name, tensor in one["weights"].items():
        assert (tensor - two["weights"][name]).abs().max() < 1e-4, name


@pytest.mark.slow
@pytest.mark.parametrize("case", LEARNERS)
def test_two_ranks_teach_a_learner_what_one_teaches(results, case):
    one, two = results[0][case], results[1][case]
    assert len(one["gradients"]) == len(two["gradients"]) == 4
    assert one["gradients"][0].norm() > 0
    assert (one["gradients"][0] - two["gradients"][0]).norm() < 1e-6 * one["gradients"][0].norm()
    assert one["metrics"][0] == pytest.approx(two["metrics"][0], rel=1e-5)
    assert one["metrics"][1] == pytest.approx(two["metrics"][1], rel=1e-4)
    for ours, theirs in zip(one["said"], two["said"], strict=True):
        assert ours.abs().max() > 0
        assert (ours - theirs).abs().max() < 1e-4
    mine, other = ({key: state[key] for key in state if key != "optimizer"} for state in (one["state"], two["state"]))
    torch.testing.assert_close(mine, other, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_checkpoint_does_not_tell_how_many_ranks_wrote_it(results):
    for case in (*CASES, *LEARNERS):
        one, two = (found[case]["state"] for found in results)
        assert one.get("steps") == two.get("steps")
        assert one["optimizer"]["param_groups"] == two["optimizer"]["param_groups"]
        for index, entry in one["optimizer"]["state"].items():
            for name, value in entry.items():
                assert torch.allclose(value, two["optimizer"]["state"][index][name], atol=1e-5), (case, index, name)


@pytest.mark.slow
def test_states_are_handed_out_tensor_by_tensor_and_not_pickled(results):
    told = results[1]["told"]
    assert len(told["load_state_dict"]) > 100
    assert all(not dimensions or is_meta for tensors in told.values() for dimensions, is_meta in tensors)


def test_whole_weights_go_where_they_are_asked_for_and_stay_tied():
    model = llama()
    assert {tensor.device.type for tensor in full_state_dict(model).values()} == {"cpu"}
    state = full_state_dict(model, device="meta")
    assert state.keys() == model.state_dict().keys()
    assert {tensor.device.type for tensor in state.values()} == {"meta"}
    assert state["lm_head.weight"] is state["model.embed_tokens.weight"]


@pytest.mark.slow
def test_what_fails_on_every_rank_is_told_once_and_ends_no_process(results):
    assert results[0]["refused"] == results[1]["refused"]
    assert "an advantage is not finite" in results[0]["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_what_fails_on_one_rank_ends_the_others_and_each_says_why(results, folder, failing):
    said = [(folder / f"two.{failing}.{rank}").read_text() for rank in range(2)]
    assert "out of memory, trainer.update: CUDA out of memory. Tried to allocate 20.00 GiB." in said[failing]
    assert "train.token_budget" in said[failing]
    assert "the other trainer ranks cannot be reached, trainer.update" in said[1 - failing]
    assert "resumes from the last checkpoint" in said[1 - failing]


def test_packs_are_shared_out_whole_and_each_rank_gets_as_many():
    rows = make_rows(groups=3, size=4)
    shares = [Ranks(rank, 3).packs(rows, 60) for rank in range(3)]
    assert len({len(share) for share in shares}) == 1
    mine = sorted(index for share in shares for packed, own in share if own for index in packed.samples)
    assert mine == list(range(len(rows)))
    sizes = [sum(len(packed.token_ids) for packed, own in share if own) for share in shares]
    assert max(sizes) - min(sizes) <= 60
