"""A Harbor task of somebody else reads nothing of this machine but its own folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.integrations.harbor.prepare import folder_of
from agentrl.integrations.harbor.tasks import digest, plan_for
from agentrl.types.errors import TaskError
from tests.integrations.test_harbor import a_recipe, a_task, tasks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_text("a secret")
    (tmp_path / "home" / "tests").mkdir()
    (tmp_path / "home" / "tests" / "test.sh").write_text("true")
    return a_recipe(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "COPY ../../../home/id_rsa /app/key", "COPY ../../../home /app/home", "ADD ../tests/ /app/t/",
        "COPY sub/../../../../home/id_rsa /app/key", "COPY ../../../ho*/id_* /app/", "COPY link /app/key",
        "COPY into /app/home", "COPY into/id_rsa /app/key", "COPY run.sh link /app/", 'COPY ["link", "/app/key"]',
        "ENV UP=..\nCOPY $UP/../../home/id_rsa /app/key", "COPY twice /app/key", "COPY pipe /app/pipe",
    ],
)  # fmt: skip
def test_a_copy_from_outside_is_refused_by_its_line(folder: Path, line: str) -> None:
    task = a_task(folder / "tasks" / "shared", **{"environment/Dockerfile": f"FROM x\nWORKDIR /app\n{line}\n"})
    context = task / "environment"
    (context / "link").symlink_to(folder / "home" / "id_rsa")
    (context / "twice").symlink_to("link")
    (context / "into").symlink_to("../../../home")
    os.mkfifo(context / "pipe")
    with pytest.raises(TaskError, match="Dockerfile:[34]: .* (leads out of|is neither file nor folder)") as error:
        tasks(folder)
    assert "a secret" not in str(error.value)
    assert [task.id for task in tasks(folder, skip=True)] == ["apart", "object"]


@pytest.mark.parametrize(
    "name", ["instruction.md", "task.toml", "tests/test.sh", "solution/solve.sh", "environment/Dockerfile"]
)
@pytest.mark.parametrize("to", ["{home}/id_rsa", "pipe", "/dev/zero"])
def test_a_file_of_the_format_that_leads_outside_is_refused(folder: Path, name: str, to: str) -> None:
    path = folder / "tasks" / "shared" / name
    path.unlink()
    if to == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(to.format(home=folder / "home"))
    with pytest.raises(TaskError, match="leads out of|neither file nor folder|cannot be|not valid"):
        tasks(folder)


@pytest.mark.parametrize("name", ["tests", "solution", "environment"])
def test_a_folder_that_becomes_a_link_is_refused_when_it_is_used(folder: Path, name: str) -> None:
    (task,) = tasks(folder, only=["shared"])
    path = folder / "tasks" / "shared" / name
    path.rename(folder / "moved")
    path.symlink_to(folder / "home" / "tests")
    with pytest.raises(TaskError, match=f"{name} leads out of"):
        folder_of(task)


def test_links_within_the_folder_are_the_tasks_own(folder: Path) -> None:
    task = a_task(
        folder / "tasks" / "shared",
        **{"environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY again /app/x\nCOPY sub /s\n"},
    )
    (task / "environment" / "again").symlink_to("run.sh")
    (task / "environment" / "sub" / "of_the_image").symlink_to("/usr/bin/env")  # copied as a link
    (task / "tests" / "same.sh").symlink_to("test.sh")
    assert len(tasks(folder, only=["shared"])) == 1
    assert len(plan_for(task).steps) == 2


def test_the_digest_reads_no_links(folder: Path) -> None:
    link = folder / "tasks" / "shared" / "environment" / "sub" / "link"
    link.symlink_to(folder / "home" / "id_rsa")
    before = digest(folder / "tasks" / "shared")
    (folder / "home" / "id_rsa").write_text("another secret")
    assert digest(folder / "tasks" / "shared") == before
    link.unlink()
    link.symlink_to("elsewhere")
    assert digest(folder / "tasks" / "shared") != before
