"""Draws the pictures of docs/credit.md: `python docs/credit/draw.py [FOLDER]`.

One small batch, credited by every built-in estimator with its defaults. A box is a turn, as wide as its tokens; green
was pushed up, red down.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from agentrl.estimators.history import History
from agentrl.estimators.registry import ESTIMATORS
from agentrl.estimators.table import CreditTable

BUILT_IN = ESTIMATORS.all()

FAMILIES = {
    "baseline": ("grpo", "dr_grpo", "flow_grpo", "rloo", "opo", "asymre", "opmd", "pass_at_k", "lite_ppo"),
    "batch": ("reinforce_pp_baseline", "gpg", "bnpo", "riskpo", "copo", "w_reinforce", "nsr", "reinforce_pp"),
    "rank": ("canon", "unlikeliness", "grpo_care", "pref_grpo", "grpo_lambda"),
    "tree": ("treepo", "carl", "salt", "tempo"),
    "state": ("returns", "gigpo", "gagpo", "rtmc", "step_grpo"),
    "process": (
        "igpo",
        "a2tgpo",
        "mt_grpo",
        "grpo_process",
        "rank_grpo",
        "ppr",
        "spa",
        "capo",
        "implicit_prm",
        "istar",
        "spro",
    ),
    "critic": ("gae", "turn_gae", "bi_level_gae", "a_lol"),
    "roles": ("role_grpo", "mars"),
    "entropy": ("high_entropy", "aem"),
    "models": ("hcapo", "c3", "draco", "sweet"),
}

# (episode, group, outcome, answer, [(state, action, tokens, immediate reward), ...])
EPISODES = (
    ("A", "g", 1.0, "flag", [("start", "left", 2, 0.0), ("hall", "open", 1, 0.2), ("room", "take", 2, 0.0)]),
    ("B", "g", 0.0, "none", [("start", "left", 2, 0.0), ("hall", "close", 2, 0.0)]),
    ("C", "g", 0.0, "none", [("start", "right", 2, 0.0), ("yard", "back", 1, 0.0), ("start", "right", 2, 0.0),
                             ("yard", "stop", 3, 0.0)]),
    ("D", "g", 0.0, "vase", [("start", "left", 2, 0.0), ("hall", "open", 1, 0.2), ("room", "drop", 3, 0.0)]),
    ("E", "h", 1.0, "key", [("gate", "push", 2, 0.0)]),
    ("F", "h", 1.0, "key", [("gate", "look", 2, 0.0), ("gate", "push", 2, 0.0)]),
    ("G", "h", 0.0, "none", [("gate", "leave", 1, 0.0)]),
)  # fmt: skip

# By (state, action): how good the turn was, which is what judges, critics and beliefs are made of here.
QUALITY = {
    "left": 0.6, "open": 0.8, "take": 1.0, "close": 0.1, "right": 0.2, "back": 0.5, "stop": 0.0, "drop": 0.0,
    "push": 1.0, "look": 0.5, "leave": 0.0,
}  # fmt: skip
HOPE = {"start": 0.3, "hall": 0.5, "room": 0.8, "yard": 0.1, "gate": 0.6}


def batch() -> CreditTable:
    """The batch as a table with every column."""
    turns = [(index, *turn) for index, episode in enumerate(EPISODES) for turn in episode[4]]
    actions, sampled = [turn[2] for turn in turns], [turn[3] for turn in turns]
    quality = np.array([QUALITY[action] for action in actions])
    hope = np.array([HOPE[turn[1]] for turn in turns])
    place = np.concatenate([np.arange(n) for n in sampled])  # of a token in its turn
    wide = np.repeat(quality, sampled)
    table = CreditTable.from_columns(
        episode=[episode[0] for episode in EPISODES],
        group=[episode[1] for episode in EPISODES],
        score=[episode[2] for episode in EPISODES],
        length=[len(episode[4]) for episode in EPISODES],
        state=[turn[1] for turn in turns],
        tokens=sampled,
        reward=[turn[4] for turn in turns],
        answer=[episode[3] for episode in EPISODES],
        win_rate=[1.0, 1 / 3, 0.0, 2 / 3, 1.0, 0.5, 0.0],
        action=actions,
        origin=_origins(),
        observation_tokens=[2] * len(turns),
        role=[("planner", "solver")[turn % 2] for episode in EPISODES for turn in range(len(episode[4]))],
        gold_logprob=np.log(hope),
        hindsight_logprob=3 * quality,
        process=quality,
        progress=quality - 0.4,
        executed=np.ones(len(quality)),
        wrong=(wide < 0.15).astype(float),
        behaviour_logprob=-0.5 - 0.5 * wide - 0.1 * place,
        ref_logprob=-1.0 - 0.1 * place,
        ema_logprob=-0.1 - wide,
        prm_logprob=-1.5 + wide - 0.1 * place,
        entropy=1.0 - 0.3 * place + 0.2 * wide,
        value=np.repeat(hope, sampled) + 0.05 * place,
    )
    return dataclasses.replace(table, history=lambda: _history(table, actions))


def _origins() -> list[str]:
    """The sampling of each turn, as if D were a fork of A at its third turn."""
    taken = {("D", 0): "A", ("D", 1): "A"}
    return [f"{taken.get((e[0], turn), e[0])} {turn}" for e in EPISODES for turn in range(len(e[4]))]


def _history(table: CreditTable, actions: list[str]) -> History:
    """Tokens by action, and two tokens of observation, named by the action, after every turn."""
    number = {action: 10 * (index + 1) for index, action in enumerate(QUALITY)}
    tokens, positions = [], []
    for start, end in zip(table.offsets[:-1], table.offsets[1:], strict=True):
        said: list[int] = []
        for turn in range(start, end):
            count, first = int(table.tokens[turn]), number[actions[turn]]
            positions += range(len(said), len(said) + count)
            said += [first + k for k in range(count)] + [1000 + first, 1001 + first]
        tokens.append(np.array(said, np.int64))
    return History(tokens, np.array(positions, np.int64))


ROW, TOKEN, GAP, LEFT, TOP, PANEL, COLUMNS = 17, 19, 5, 40, 24, 275, 3


def picture(table: CreditTable, names: tuple[str, ...]) -> str:
    """One panel per estimator, one row per trajectory, as SVG."""
    panels = [("the batch", None), *((name, BUILT_IN[name](table)) for name in names)]
    height = TOP + ROW * table.n_trajectories + 12
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{PANEL * columns}" height="{height * lines}" '
        'font-family="sans-serif" font-size="9">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, (name, found) in enumerate(panels):
        out.append(f'<g transform="translate({PANEL * (index % columns)},{height * (index // columns)})">')
        out.append(f'<text x="4" y="14" font-size="12" font-weight="bold">{escape(name)}</text>')
        values = None if found is None else found.turn if found.token is None else found.token
        scale = 1.0 if values is None else max(float(np.abs(values).max()), 1e-9)
        for i in range(table.n_trajectories):
            y, x = TOP + ROW * i, LEFT
            outcome = f"{table.episode_ids[i]}  {table.score[i]:g}"
            out.append(f'<text x="4" y="{y + 11}">{outcome}</text>')
            for turn in range(table.offsets[i], table.offsets[i + 1]):
                width = int(table.tokens[turn]) * TOKEN
                label = _actions()[turn] if found is None else f"{_rounded(found.turn[turn]):+.2f}"
                out += _boxes(table, turn, x, y, None if found is None else (found.turn, found.token), scale)
                style = 'text-anchor="middle"'
                out.append(f'<text x="{x + width / 2:g}" y="{y + 11}" {style}>{escape(label)}</text>')
                x += width + GAP
        out.append("</g>")
    return "\n".join([*out, "</svg>"]) + "\n"


def _actions() -> list[str]:
    return [turn[1] for episode in EPISODES for turn in episode[4]]


def _boxes(table: CreditTable, turn: int, x: int, y: int, values: tuple | None, scale: float) -> list[str]:
    """The turn's box; a box per token where the estimator tells tokens apart."""
    count = int(table.tokens[turn])
    if values is None or values[1] is None:
        value = 0.0 if values is None else float(values[0][turn])
        shades = [(x, count * TOKEN, value)]
    else:
        first = table.token_offsets[turn]
        shades = [(x + k * TOKEN, TOKEN, float(values[1][first + k])) for k in range(count)]
    return [
        f'<rect x="{at}" y="{y}" width="{width}" height="{ROW - 3}" fill="{_colour(value / scale)}" stroke="#888" '
        'stroke-width="0.5"/>'
        for at, width, value in shades
    ]


def _colour(share: float) -> str:
    """White at 0, green up to 1, red down to -1."""
    share = max(-1.0, min(1.0, _rounded(share)))
    faded = round(255 - 150 * abs(share))
    return f"rgb({faded},230,{faded})" if share > 0 else f"rgb(240,{faded},{faded})" if share < 0 else "white"


def _rounded(value: float) -> float:
    """Two digits, and no minus zero: the pictures are the same on every machine."""
    return round(float(value), 2) + 0.0


def main(folder: Path) -> None:
    table = batch()
    for family, names in FAMILIES.items():
        (folder / f"{family}.svg").write_text(picture(table, names))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
