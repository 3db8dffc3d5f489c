"""Reads back what trackers wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Curves = dict[str, list[tuple[int, float]]]
"""By name: (step, value)."""


def tensorboard(run: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mlflow(run: Path) -> Curves:
    return _curves(_rows(run / "mlflow.db", "SELECT key, step, value FROM metrics ORDER BY step"))


def trackio(folder: Path, project: str) -> Curves:
    lines = _rows(folder / f"{project}.db", "SELECT step, metrics FROM metrics ORDER BY id")
    return _curves((name, step, value) for step, line in lines for name, value in json.loads(line).items())


def wandb(run: Path) -> Curves:
    """Of all offline folders of the run, which `wandb sync` sends."""
    lines = [
        record.history for file in wandb_files(run) for record in wandb_records(file) if record.HasField("history")
    ]
    items = [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in line.item} for line in lines]
    return _curves((name, line["iteration"], value) for line in items for name, value in line.items())


def wandb_files(run: Path) -> list[Path]:
    return sorted(run.glob("wandb/offline-run-*/*.wandb"))


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline file: a LevelDB log behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def _rows(path: Path, sql: str) -> list[Any]:
    with sqlite3.connect(path) as db:
        return db.execute(sql).fetchall()


def _curves(points: Any) -> Curves:
    curves: Curves = {}
    for name, step, value in points:
        curves.setdefault(name, []).append((step, value))
    return curves
