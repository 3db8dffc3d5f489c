"""The implicit reward model: it learns to tell good episodes from bad, and continues exactly."""

from __future__ import annotations

import copy
import dataclasses
import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.train import CriticSettings, RewardModelSettings, TrainSettings
from agentrl.estimators.registry import EpisodeCredit
from agentrl.training.auxiliary.models import required_models
from agentrl.training.auxiliary.reward_model import ImplicitRewardModel, _preferences
from agentrl.training.batch.model_columns import ModelColumns
from agentrl.training.batch.privileged import Privileged, reference_of
from agentrl.training.compute_thread import Inline
from agentrl.training.local import LocalTrainer
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.errors import CreditError
from agentrl.types.sample import TrainingSample, untrained_samples
from agentrl.types.task import Task
from tests.training.make import llama, make_rows


def learner(model, **settings) -> ImplicitRewardModel:
    own = TrainSettings(reward_model=RewardModelSettings(**settings), token_budget=4096)
    made = Trainer(model, own, auxiliary=required_models(own, {"prm_logprob"})).auxiliary["reward_model"]
    assert isinstance(made, ImplicitRewardModel)
    return made


def rows_with_outcomes():
    rows = make_rows()
    names = list(dict.fromkeys(row.episode_id for row in rows))
    return [dataclasses.replace(row, reward=float(names.index(row.episode_id) % 2)) for row in rows]


@pytest.mark.slow
def test_it_begins_undecided_and_learns_the_outcomes() -> None:
    model, rows = llama(), rows_with_outcomes()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reward_model = learner(model, lr=1e-3, steps=1)
    reference = reward_model.logprobs(rows)
    # A copy of its reference: every episode is good with probability 1/2, and the cross-entropy is ln 2.
    assert reward_model.fit(rows, reference)["reward_model_loss"] == pytest.approx(math.log(2))
    for _ in range(30):
        found = reward_model.fit(rows, reference)
    assert found["reward_model_loss"] < 0.5
    assert found["reward_model_accuracy"] == 1.0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("reward", ["sum", "turn_means"])
@pytest.mark.parametrize("objective", ["outcome", "preference"])
def test_the_slope_is_that_of_the_cross_entropy(objective: str, reward: str) -> None:
    model, rows = llama(), rows_with_outcomes()
    reward_model = learner(model, lr=1e-12, beta=0.3, max_grad_norm=1e9, objective=objective, reward=reward)
    reference = [values * 0.9 for values in reward_model.logprobs(rows)]
    kept: dict[str, torch.Tensor] = {}
    step = reward_model.optimizer.step

    def keep() -> None:
        kept.update({n: p.grad.clone() for n, p in reward_model.policy.named_parameters() if p.grad is not None})
        step()

    reward_model.optimizer.step = keep  # type: ignore[method-assign]
    reward_model.fit(rows, reference)

    # The same by automatic differentiation, a row at a time.
    names = list(dict.fromkeys(row.episode_id for row in rows))
    total = torch.zeros(len(names))
    for row, theirs in zip(rows, reference, strict=True):
        ids = torch.from_numpy(row.token_ids)[None]
        every = torch.log_softmax(reward_model.policy.model(input_ids=ids).logits[0, :-1] / row.temperature, -1)
        ours = every.gather(1, ids[0, 1:, None])[:, 0]
        mask = torch.from_numpy(row.loss_mask)[1:]
        ratio = (ours - torch.from_numpy(theirs)[1:]) * mask
        spans = [ratio[start - 1 : end - 1] for _, start, end in row.turn_spans]
        total[names.index(row.episode_id)] += sum(span.sum() if reward == "sum" else span.mean() for span in spans)
    good = torch.tensor([next(row.reward for row in rows if row.episode_id == name) for name in names])
    reward_model.policy.zero_grad()
    if objective == "outcome":
        torch.nn.functional.binary_cross_entropy_with_logits(0.3 * total, good).backward()
    else:
        groups = [name.partition("/")[0] for name in names]
        pairs = [
            (i, j) for i in range(len(names)) for j in range(len(names)) if groups[i] == groups[j] and good[i] > good[j]
        ]
        better, worse = map(list, zip(*pairs, strict=True))
        (-torch.nn.functional.logsigmoid(0.3 * (total[better] - total[worse]))).mean().backward()
    for name, parameter in reward_model.policy.named_parameters():
        torch.testing.assert_close(kept[name], parameter.grad, atol=1e-6, rtol=1e-4)


def test_preferences_are_those_of_dpo() -> None:
    # Rewards 1, 0, 2; the first is better than the others, and the second better than the third: sigmoid of 1, -1, -2.
    rewards, pairs = torch.tensor([1.0, 0.0, 2.0], requires_grad=True), [(0, 1), (0, 2), (1, 2)]
    better, worse = (np.array(side) for side in zip(*pairs, strict=True))
    right, slope = _preferences(better, worse, rewards.detach().numpy().astype(np.float64))
    np.testing.assert_allclose(right, 1 / (1 + np.exp([-1.0, 1.0, 2.0])))
    loss = -torch.nn.functional.logsigmoid(rewards[better] - rewards[worse]).mean()
    loss.backward()
    np.testing.assert_allclose(slope, rewards.grad, rtol=1e-6)


@pytest.mark.slow
def test_it_learns_which_episode_of_a_group_is_better() -> None:
    rows = [dataclasses.replace(row, group_id="g") for row in rows_with_outcomes()]
    reward_model = learner(llama(), lr=1e-3, objective="preference", reference="policy")
    reference = [row.behaviour_logprob for row in rows]
    for _ in range(30):
        found = reward_model.fit(rows, reference)
    assert found["reward_model_loss"] < 0.5
    assert found["reward_model_accuracy"] == 1.0
    # Every episode in a group of its own: nobody to prefer, no step.
    before = reward_model.logprobs(rows)
    assert reward_model.fit([dataclasses.replace(row, group_id=row.episode_id) for row in rows], reference) == {}
    assert all((one == other).all() for one, other in zip(before, reward_model.logprobs(rows), strict=True))


def test_state_continues_exactly() -> None:
    model, rows = llama(), rows_with_outcomes()
    straight = learner(model, lr=1e-3)
    reference = straight.logprobs(rows)
    straight.fit(rows, reference)
    resumed = learner(llama(), lr=1e-3)
    resumed.load_state_dict(straight.state_dict())
    assert straight.fit(rows, reference) == resumed.fit(rows, reference)


@pytest.mark.parametrize("need", ["value", "progress", "prm_logprob"])
async def test_an_iteration_without_scored_episodes_teaches_nobody(need: str) -> None:
    settings = TrainSettings(critic=CriticSettings(), reward_model=RewardModelSettings())
    local = LocalTrainer(cast(Any, SimpleNamespace(compute=Inline())))
    models = required_models(settings, {need})
    local._trainer = Trainer(llama(), settings, auxiliary=models)
    columns = ModelColumns({need}, models, local)
    columns.of([], {}, await columns.measured([]))
    assert await columns.learn([], {}, []) == {}


def test_equal_episodes_are_no_pairs() -> None:
    rows = [dataclasses.replace(row, reward=1.0) for row in make_rows()]
    reward_model = learner(llama(), objective="preference")
    assert reward_model.fit(rows, reward_model.logprobs(rows)) == {}


def played_and_rows() -> tuple[Renderer, list[Episode], list[TrainingSample]]:
    """Two episodes of two turns, and the renderer of their prompts."""
    renderer = Renderer(ByteTokenizer(), parser_named("tags", []), [])
    episodes = []
    for k in range(2):
        task = Task.of(f"t{k}", "2 + 2?", answer=["4", "four"])
        nodes = [Node(parent=-1, kind="prompt", token_ids=renderer.start(task.instruction))]
        for text in ("two", f"it is {k}"):
            said = renderer.demonstrate(text, nodes[-1].token_ids)
            nodes.append(Node(parent=len(nodes) - 1, kind="sampled", token_ids=said, logprobs=[-1.0] * len(said)))
            seen = renderer.extend(said, [{"role": "user", "content": "on"}])
            nodes.append(Node(parent=len(nodes) - 1, kind="observation", token_ids=seen))
        turns = [Turn(index=n, node=1 + 2 * n, text="", finish="stop") for n in range(2)]
        made = Episode(id=f"e{k}", group_id="g", task=task, status="done", nodes=nodes, turns=turns, reward=float(k))
        episodes.append(made)
    return renderer, episodes, [row for each in episodes for row in untrained_samples(each)]


def test_what_the_reward_model_sees_stands_before_the_first_reply() -> None:
    renderer, episodes, rows = played_and_rows()
    privileged = Privileged(renderer, "answer")
    shown = privileged.shown(rows, episodes)
    for plain, more in zip(rows, shown, strict=True):
        assert "see: 4 | four" in renderer.tokenizer.decode(more.token_ids.tolist())
        assert (more.token_ids[more.loss_mask] == plain.token_ids[plain.loss_mask]).all()
        said = [more.token_ids[start:end].tolist() for _, start, end in more.turn_spans]
        assert said == [plain.token_ids[start:end].tolist() for _, start, end in plain.turn_spans]
    hidden = privileged.hidden(rows, [row.token_ids for row in shown])
    assert all((own == row.token_ids).all() for own, row in zip(hidden, rows, strict=True))


def test_a_task_without_the_reference_is_named() -> None:
    with pytest.raises(CreditError, match=r"task t7: data\['gold'\]"):
        reference_of(Task.of("t7", "?"), "gold")


async def test_the_ratio_is_that_of_both_models_in_private() -> None:
    """After learning: where they see the answer, not where the policy stands."""
    renderer, episodes, rows = played_and_rows()
    settings = TrainSettings(
        reward_model=RewardModelSettings(objective="preference", reward="turn_means", sees="answer", lr=1e-2)
    )
    models = required_models(settings, {"prm_logprob", "ref_logprob"})
    local = LocalTrainer(cast(Any, SimpleNamespace(compute=Inline())))
    reference = llama(vocab_size=300, max_position_embeddings=512)
    local._trainer = Trainer(reference, settings, reference=copy.deepcopy(reference), auxiliary=models)
    privileged = Privileged(renderer, "answer")
    columns = ModelColumns({"prm_logprob", "ref_logprob"}, models, local, privileged)
    credits = [EpisodeCredit(episode_id=each.id, estimator="sweet", turn_advantages=[0.0, 0.0]) for each in episodes]
    told = await columns.learn(episodes, {each.id: untrained_samples(each) for each in episodes}, credits)
    assert told["reward_model_loss"] == pytest.approx(math.log(2))

    found = await columns.measured(rows, episodes)
    shown = privileged.shown(rows, episodes)
    ours, theirs = await local.column("prm_logprob", shown), await local.logprobs(shown, reference=True)
    for k, row in enumerate(rows):
        ratio = (found["prm_logprob"][k] - found["ref_logprob"][k])[row.loss_mask]
        assert ratio == pytest.approx((ours[k] - theirs[k])[shown[k].loss_mask], abs=1e-4)
        assert abs(ratio).max() > 1e-3
