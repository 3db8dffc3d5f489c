"""Environments of other frameworks in processes of their own: what is refused before the first episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.types.errors import TaskError
from tests.integrations.guested import tasks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"kind": "gymnasium"}, r"no kind 'gymnasium'"),
        ({"kind": "openenv", "python": ".venv-none/bin/python"}, r"(?s)no interpreter .*venv-none.*-m venv"),
        (
            {"kind": "inspect", "spec": {"task": "x"}},
            "inspect_ai is not installed there: .* -m pip install",
        ),
        ({"kind": "inspect", "spec": {"path": 3, "task": "x"}}, r"spec.path is 3\n.*give a list of folders"),
        ({"kind": "openenv", "spec": {}}, "OpenEnv needs spec: {env: package.module:Class}, or {url"),
    ],
)
def test_what_cannot_be_listed(tmp_path: Path, args: dict[str, Any], expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        tasks(tmp_path, **args)


def test_one_folder_of_modules_may_be_a_text(tmp_path: Path) -> None:
    (tmp_path / "src" / "inspect_ai").mkdir(parents=True)
    (tmp_path / "src" / "inspect_ai" / "__init__.py").write_text("raise ConnectionError('it is this one')")
    with pytest.raises(TaskError, match="it is this one"):
        tasks(tmp_path, kind="inspect", spec={"path": "./src", "task": "x"})
