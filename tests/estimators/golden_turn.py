"""How to hold the turn and token estimators against golden files."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np

from agentrl.estimators.history import History
from agentrl.estimators.table import CreditTable
from tests.estimators.golden import Check, Golden, arguments
from tests.estimators.golden_trajectory import run


def valued(golden: Golden, **columns: object) -> CreditTable:
    return golden.table().with_columns(value=[v for turn in golden.turns for v in turn["values"]], **columns)


def gae(golden: Golden) -> None:
    table = valued(golden)
    for setting, expected in golden.data["expected"].items():
        given = {name: float(value) for name, value in arguments(setting).items()}
        raw, white = run("gae", table, **given, whiten=False), run("gae", table, **given)
        golden.close(raw.token, expected["advantages_raw"], table, setting)
        golden.close(white.token, expected["advantages_whitened"], table, setting)
        golden.close(white.value_target, expected["returns"], table, setting)


def turn_gae(golden: Golden) -> None:
    table = valued(golden)
    for setting, expected in golden.data["expected"].items():
        given = arguments(setting)
        anchor = given["value"].removesuffix("_token")
        settings = {"gamma": float(given["gamma"]), "lam": float(given["lam"]), "anchor": anchor}
        raw, white = run("turn_gae", table, **settings, whiten=False), run("turn_gae", table, **settings)
        golden.close(raw.turn, expected["advantage_raw_per_turn"], table, setting)
        golden.close(white.turn, expected["advantage_whitened_per_turn"], table, setting)
        asked = np.isfinite(white.value_target)
        assert asked.sum() == table.n_turns
        golden.close(white.value_target[asked], expected["return_per_turn"], table, setting)


def bi_level_gae_explicit_ends(golden: Golden) -> None:
    for setting, expected in golden.data["expected_advantages_raw"].items():
        table, settings = _bi_level(golden, setting)
        golden.close(run("bi_level_gae", table, **settings, whiten=False).token, expected, table, setting)


def bi_level_gae(golden: Golden) -> None:
    """RAGEN's own numbers: it takes a turn of reward 0 for a part of the next, so such turns are merged first."""
    for setting, expected in golden.data["expected"].items():
        if "upstream_error" in expected:
            continue
        table, settings = _bi_level(golden, setting)
        found = run("bi_level_gae", _merged(table), **settings)
        golden.close(found.token, expected["advantages_whitened"], table, setting)
        golden.close(found.value_target, expected["returns"], table, setting)


def _bi_level(golden: Golden, setting: str) -> tuple[CreditTable, dict[str, float]]:
    rewards, _, rest = setting.partition("; ")
    given = {name: float(value) for name, value in arguments(rest).items()}
    table = valued(golden)
    reward = table.reward * ("outcome only" not in rewards) + 0.05 * ("+ 0.05" in rewards)
    given["gamma_high"] = given.pop("high_level_gamma")
    return dataclasses.replace(table, reward=reward), given


def _merged(table: CreditTable) -> CreditTable:
    ends = (table.step_reward != 0) | (table.turns_left == 0)
    starts = np.concatenate([[True], ends[:-1]]) | (table.turn == 0)
    turn = np.cumsum(starts) - 1
    return CreditTable.from_columns(
        episode=table.episode_ids,
        group=[table.group_ids[group] for group in table.group],
        score=table.score,
        length=np.bincount(table.trajectory[starts], minlength=table.n_trajectories),
        reward=np.bincount(turn, table.reward),
        tokens=np.bincount(turn, table.tokens),
        value=table.value,
    )


def igpo(golden: Golden) -> None:
    table = golden.table().with_columns(gold_logprob=[turn["answer_mean_logprob_before"] for turn in golden.turns])
    gains = {"prob_diff": "probability", "log_prob_diff": "log_probability"}
    pools = {"joint": "joint", "separate": "separate", "scaled_separate": "scaled", "raw_ig": "raw"}
    for setting, expected in golden.data["expected"].items():
        given = arguments(setting)
        found = run(
            "igpo",
            table,
            gain=gains[given["type"]],
            pools=pools[given["norm"]],
            gamma=float(given["gamma"]),
            std="population" if given["std"] == "True" else "none",
            singleton="raw",
        )
        golden.close(found.turn, expected["advantage"], table, setting)


def salt(golden: Golden) -> None:
    table = golden.table()
    for setting, expected in golden.data["expected"].items():
        given = arguments(setting)
        history = None if given["history"] == "all" else int(given["history"])
        found = run("salt", table, base=given["base"], history=history)
        golden.close(found.turn, expected["advantage"], table, setting)


def mt_grpo(golden: Golden) -> None:
    """Groups of one are left out of the file: the authors' code gives NaN there."""
    table = golden.table()
    for setting, expected in golden.data["expected_advantage_per_turn"].items():
        found = run("mt_grpo", table, coef=float(arguments(setting)["coef"]))
        lone = [name for name, size in zip(table.episode_ids, table.group_size[table.group], strict=True) if size == 1]
        zeros = {name: [0.0] * int(table.length[table.episode_ids.index(name)]) for name in lone}
        golden.close(found.turn, {**zeros, **expected}, table, setting)


def tempo(golden: Golden) -> None:
    table = golden.table()
    tokens, position = [], []
    for _, trajectory in golden.trajectories:
        seen: list[int] = []
        for turn in trajectory["turns"]:
            position += range(len(seen), len(seen) + len(turn["action_token_ids"]))
            seen += turn["action_token_ids"]
            if turn["next_state"] != "end":
                seen.append(golden.data["pseudo_observation_tokens"][turn["next_state"]])
        tokens.append(np.array(seen, np.int64))
    history = History(tokens, np.array(position))
    table = dataclasses.replace(table, history=lambda: history)
    for key, std in (("expected_with_std", "sample"), ("expected_without_std", "none")):
        found = run("tempo", table, std=std)
        # The authors' NaN in a group of one is 0 here.
        expected = {
            name: [[0.0 if value is None else value for value in turn] for turn in turns]
            for name, turns in golden.data[key].items()
        }
        golden.close(found.token, expected, table, key)


def mars(golden: Golden) -> None:
    table = golden.table()
    table = table.with_columns(role=[str(golden.data["player"][table.episode_ids[i]]) for i in table.trajectory])
    for setting, expected in golden.data["expected"].items():
        if "normalised_turn_rewards" in setting:
            continue  # an intermediate: the raw advantages hold it
        given = arguments(setting)
        settings = {"gamma": float(given["gamma"]), "whiten_rewards": given["whiten_rewards"] == "True"}
        norm, whiten = given["advantage_norm"].replace("None", "none"), given["whiten_advantages"] == "True"
        raw = run("mars", table, **settings, advantage_norm="none", whiten=False).token
        golden.close(raw, expected["raw_advantage"], table, setting)
        found = run("mars", table, **settings, advantage_norm=norm, whiten=whiten).token
        wanted = np.array([v for name in table.episode_ids for turn in expected["advantage"][name] for v in turn])
        if np.abs(found - wanted).max() > golden.tolerance:
            _same_but_for_distinctness(golden, table, raw, wanted, setting)


def _same_but_for_distinctness(
    golden: Golden, table: CreditTable, raw: np.ndarray, wanted: np.ndarray, setting: str
) -> None:
    """MARS takes the mean of a role over the DISTINCT float32 values; two equal numbers that were rounded differently
    count twice. Which do depends on the order of vector instructions: it shifts a role as a whole, so that the numbers
    of a role still differ as ours do, and the shift is one that counting some repeated values again can make."""
    role = table.role[table.token_turn]
    shifts = []
    for index in np.unique(role):
        mine = role == index
        slope = np.ptp(wanted[mine]) / np.ptp(raw[mine])
        np.testing.assert_allclose(
            wanted[mine] - wanted[mine][0],
            slope * (raw[mine] - raw[mine][0]),
            rtol=0,
            atol=golden.tolerance,
            err_msg=setting,
        )
        shifts.append(raw[mine][0] - wanted[mine][0] / slope)
    # The batch's mean, which whitening takes away, is in every role's shift: only differences between roles tell.
    intervals = [_means_with_repeats(raw[role == index]) for index in np.unique(role)]
    for (one, (low, high)), (other, (least, most)) in product(zip(shifts, intervals, strict=True), repeat=2):
        assert low - most - 1e-3 <= one - other <= high - least + 1e-3, setting


def _means_with_repeats(values: np.ndarray) -> tuple[float, float]:
    """The smallest and largest mean of the distinct values and 0, when some of them may count twice."""
    distinct = np.unique(np.append(values, 0).round(5))

    def extreme(ordered: np.ndarray) -> list[float]:
        return [(distinct.sum() + ordered[:k].sum()) / (len(distinct) + k) for k in range(len(ordered) + 1)]

    return min(extreme(distinct)), max(extreme(distinct[::-1]))


CHECKS: dict[str, Check] = {
    "gae": gae,
    "turn_gae": turn_gae,
    "bi_level_gae": bi_level_gae,
    "bi_level_gae_explicit_ends": bi_level_gae_explicit_ends,
    "igpo": igpo,
    "salt": salt,
    "mt_grpo": mt_grpo,
    "tempo": tempo,
    "mars": mars,
}
