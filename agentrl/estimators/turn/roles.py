"""Several agents in one episode: each role is compared with itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from agentrl.estimators.arrays import Floats, Ints, combine, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, normalise, whiten
from agentrl.estimators.parted import parted
from agentrl.estimators.seats import Seats
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.gae import WHITEN_EPS

Float32s = NDArray[np.float32]
PerRole = Literal["mean", "mean_std", "none"]


class MarsSettings(BaseModel):
    """Settings of `mars`, with the authors' defaults. It does not use task groups, so it lacks `singleton`.

    Attributes:
        gamma: discount per token, observation tokens included.
        reward_norm: normalisation of the turn rewards of a role, over the whole batch.
        whiten_rewards: whiten token rewards over the batch. It shifts the zero of tokens without a reward, so that the
            tokens of a turn differ afterwards.
        advantage_norm: normalisation of the advantages of a role. As in the authors' code every DISTINCT value counts
            once, including those at observations and the 0 of the padding; values are compared as float32 numbers.
        whiten: whiten the batch's advantages at the end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: Discount = 1.0
    reward_norm: PerRole = "mean"
    whiten_rewards: bool = True
    advantage_norm: PerRole = "mean"
    whiten: bool = True


@estimator(
    granularity="token",
    source="thu-nics/MARS@5979f75 roll/utils/functionals.py",
    certainty="A",
    needs=["role", "observation_tokens"],
    reads=["outcome", "turns"],
)
def mars(table: CreditTable, settings: MarsSettings) -> Advantages:
    """Turn rewards less the mean of their role, summed over later tokens, less the mean of the role's advantages.

    Statistics are taken over the whole batch by role, not by task group. A trajectory's observations and padding count
    for the role of the turn before.

    As in the authors' code each role is a player with consecutive tokens and separate rewards: a trajectory of several
    roles is split. The outcome is that of the player's context (`context.score`), else the episode's. Their norms
    `asym_clip` and `running`, and batches split by environment, are not implemented.
    """
    players = parted(table, _players(table))
    advantage = _of_players(players.table, settings)
    token = players.whole(advantage)
    return Advantages(table.turn_mean(token), token)


def _players(table: CreditTable) -> Seats:
    """Makes every role a seat, in the existing groups."""
    role_of = needed(table.role, "role")
    return Seats([], role_of, np.full(table.n_turns, -1), table.score[table.trajectory], own=False)


def _of_players(table: CreditTable, settings: MarsSettings) -> Floats:
    """Computes token advantages of a table with one role per trajectory [n_tokens]."""
    role_of = needed(table.role, "role")
    # float32, and step by step below, as the authors' code does it: the rounding decides which values are distinct.
    steps = table.step_reward.astype(np.float32)
    roles = np.unique(role_of)
    for role in roles:
        mine = role_of == role
        steps[mine] = _standardised(steps[mine], steps[mine], settings.reward_norm)
    reward = np.zeros(table.n_tokens, np.float32)
    played = table.tokens > 0
    reward[table.token_offsets[1:][played] - 1] = steps[played]
    if settings.whiten_rewards:
        reward = _whiten(reward)
    token, observed, observer = _returns(table, reward, settings.gamma)
    speaker = role_of[table.token_turn]
    for role in roles:  # one that sampled nothing has no entry of `token` to change
        mine = speaker == role
        values = np.concatenate([token[mine], observed[observer == role], np.zeros(1, np.float32)])
        token[mine] = _standardised(token[mine], np.unique(values), settings.advantage_norm)
    if settings.whiten:
        token = _whiten(token)
    return token.astype(np.float64)


def _returns(table: CreditTable, reward: Float32s, gamma: float) -> tuple[Float32s, Float32s, Ints]:
    """Reward-to-go at the sampled tokens [n_tokens] and at the observation tokens [n], and the role of the turn that
    each of these came after [n]."""
    role_of = needed(table.role, "role")
    observation_tokens = needed(table.observation_tokens, "observation_tokens")
    sizes = np.stack([table.tokens, observation_tokens], 1).ravel()
    ends = np.cumsum(sizes)
    owner = np.repeat(table.trajectory, 2)
    first = np.concatenate([[0], ends])[2 * table.offsets[:-1]]
    kind, at = np.repeat(np.arange(len(sizes)), sizes), np.arange(sizes.sum())
    row, column = owner[kind], at - first[owner[kind]]
    grid = np.zeros((int(column.max(initial=-1)) + 2, table.n_trajectories), np.float32)
    sampled = kind % 2 == 0
    grid[column[sampled], row[sampled]] = reward
    for step in range(len(grid) - 2, -1, -1):
        grid[step] += np.float32(gamma) * grid[step + 1]
    values = grid[column, row]
    return values[sampled], values[~sampled], role_of[kind // 2][~sampled]


class RoleGrpoSettings(Normalisation):
    """Settings of `role_grpo`. Dr. MAS is `weighting: turn` with `singleton: raw`, and outcomes alone.

    Attributes:
        score: the compared value of a turn: the outcome and all rewards of its role's turns (`total`), or the outcome
            and those from the turn on (`return`).
        gamma: discount per turn of the return.
    """

    score: Literal["total", "return"] = "total"
    gamma: Discount = 1.0


@estimator(
    granularity="turn",
    source="arXiv:2602.08847; langfengQ/DrMAS@19c632b core_algos.py (group_by_agent_id)",
    certainty="A",
    needs=["role"],
    reads=["outcome", "turns"],
)
def role_grpo(table: CreditTable, settings: RoleGrpoSettings) -> Advantages:
    """A_{i,t} = (x_{i,t} - mean) / (std + eps) over the turns of the same group AND the same role.

    Under `weighting: trajectory` a trajectory counts once for each of its roles, whatever their number of turns. A role
    that only one trajectory of the group has is a group of one. A role is not credited with rewards of other roles'
    turns: each may get a separate outcome, as the reward of its last turn.
    """
    role_of = needed(table.role, "role")
    pool = combine(table.turn_group, role_of)
    part = combine(pool, table.trajectory)
    own_total = table.score[table.trajectory] + np.bincount(part, table.reward)[part]
    value = own_total if settings.score == "total" else _own_returns(table, settings.gamma)
    weights = table.turn_weights(settings.weighting)
    if settings.weighting == "trajectory":
        weights = 1.0 / np.bincount(part)[part]
    members = np.bincount(pool[np.unique(part, return_index=True)[1]])
    pool_names = [table.group_ids[g] for g in table.turn_group[np.unique(pool, return_index=True)[1]]]
    advantage = normalise(
        value,
        pool,
        weights,
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=members,
        names=pool_names,
    )
    return Advantages(advantage, parts={"role": advantage})


def _own_returns(table: CreditTable, gamma: float) -> Floats:
    """Reward-to-go of every turn, without the rewards of other roles [n_turns]."""
    role_of = needed(table.role, "role")
    value = replace(table, reward=np.zeros(table.n_turns)).returns(gamma)
    for role in np.unique(role_of):
        mine = role_of == role
        value[mine] += discounted(np.where(mine, table.reward, 0.0), table.turns_left, gamma)[mine]
    return value


def _standardised(values: Float32s, pool: Float32s, how: PerRole) -> Float32s:
    """`values` less the mean of `pool`, and divided by its deviation (Bessel) if asked for."""
    if how == "none":
        return values
    centred: Float32s = values - pool.mean()
    return centred / (pool.std(ddof=1) + np.float32(1e-6)) if how == "mean_std" and len(pool) > 1 else centred


def _whiten(token: Float32s) -> Float32s:
    return whiten(token.astype(np.float64), np.ones(len(token)), std="sample", eps=WHITEN_EPS).astype(np.float32)
