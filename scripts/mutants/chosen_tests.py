"""Selects tests and their order for a run on a mutated file, and notes how it ends, as a plug-in of pytest.

`__main__.py` names a file of JSON in the environment:

    files     test files in the order in which they run
    only      ids of tests, files and folders whose tests run; null: all
    skipped   ids of tests that do not

The result lies beside it, written at each step, since a mutated program may end the process.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "AGENTRL_CHOSEN_TESTS"


class _Run:
    choice: dict[str, Any]
    result: Path
    noted: dict[str, Any]


def pytest_configure() -> None:
    path = Path(os.environ[VARIABLE])
    _Run.choice = json.loads(path.read_text())
    _Run.result = path.with_suffix(".result")
    _note(ran=0, started="", failed="", why="", finished=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = {file: k for k, file in enumerate(_Run.choice["files"])}
    kept = sorted(filter(_chosen, items), key=lambda item: order[item.nodeid.split("::")[0]])
    config.hook.pytest_deselected(items=[item for item in items if not _chosen(item)])
    items[:] = kept


def _chosen(item: pytest.Item) -> bool:
    only = _Run.choice["only"]
    file = item.nodeid.split("::")[0]
    folders = map(str, Path(file).parents)
    wanted = only is None or not {item.nodeid, file, *folders}.isdisjoint(only)
    return wanted and item.nodeid not in _Run.choice["skipped"]


def pytest_runtest_logstart(nodeid: str) -> None:
    _note(started=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed(report)
    elif report.when == "call" and report.passed:
        _note(ran=_Run.noted["ran"] + 1)


def pytest_sessionfinish() -> None:
    _note(finished=True)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _failed(report)


def _failed(report: pytest.TestReport | pytest.CollectReport) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).strip().rsplit("\n", 1)[-1]
    if not _Run.noted["failed"]:
        _note(failed=report.nodeid, why=text.split("\n")[0][:200])


def _note(**values: object) -> None:
    _Run.noted = {**getattr(_Run, "noted", {}), **values}
    _Run.result.write_text(json.dumps(_Run.noted))
