"""The page of model families says what is."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.training.trainer import Trainer

from .families import FAMILIES, Family, tiny_model
from .page import cheap, read, trains, vllm, vllm_version, write

MUST_TRAIN = 25
"""Families that train, at the least."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_cheap_columns_are_what_the_page_says(family: Family) -> None:
    kind, template, format, engine, trainer, *_ = read()[family.name]
    found = cheap(family)
    assert kind == f"`{family.kind}`"
    assert template.strip("`") == found.template
    assert format.strip("`") == found.format
    assert (engine, trainer) == (found.engine, found.trainer)


@pytest.mark.parametrize(("name", "kind"), [("Qwen3.5", "linear_attention"), ("LFM2", "conv")])
def test_a_hybrid_is_told_what_its_layers_keep(name: str, kind: str) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    engine, trainer = TorchEngine(tiny_model(family, 600)), Trainer(tiny_model(family, 600), TrainSettings())
    assert f"keep a state of their own ({kind})" in (engine.one_by_one or "")
    assert f"pass a state from token to token ({kind})" in (trainer.unpacked or "")


def test_enough_families_train() -> None:
    page = read()
    assert list(page) == [family.name for family in FAMILIES]
    assert sum(columns[5] == "yes" for columns in page.values()) >= MUST_TRAIN


@pytest.mark.family("models")
@pytest.mark.timeout(36000)
def test_all_families(tmp_path: Path) -> None:
    served = vllm(tmp_path)
    rows = {}
    for number, family in enumerate(FAMILIES):
        columns = cheap(family), trains(family, tmp_path / f"train-{number}"), served.get(family.name, "not tried")
        rows[family.name] = (family, *columns)
        print(family.name, *columns, flush=True)
    write(rows, vllm_version())
    assert sum(trained == "yes" for _, _, trained, _ in rows.values()) >= MUST_TRAIN
