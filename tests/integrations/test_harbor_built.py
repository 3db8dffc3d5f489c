"""Dockerfiles of Harbor task folders are built by a container engine, and played in both backends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.api.recipe_check import check
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.integrations.harbor.build import TASKS, engine_api
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.integrations.test_harbor import RECIPE, TEST, TOML, a_task
from tests.sandbox.conftest import docker_host  # noqa: F401
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.family("harbor")]

BASES = {"python:3.12-slim": "agentrl/base:latest"}
DOCKERFILE = """\
ARG VERSION=3.12
FROM python:${VERSION}-slim AS made
RUN mkdir -p /opt/made && echo made > /opt/made/text

FROM python:3.12-slim@sha256:0
ENV LIMIT=3 PATH=/opt/own:$PATH
RUN --mount=type=cache,target=/root/.cache mkdir -p /opt/own && echo from-system > /etc/own.conf
COPY --from=made /opt/made /opt/made
COPY --chmod=755 run.sh /opt/own/tool
WORKDIR /app
COPY numbers.txt ./
RUN <<END
echo "a heredoc" > /app/here
END
RUN cat > /opt/own/said <<'END' && chmod +x /opt/own/said && true
#!/bin/sh
echo "it's \\"said\\" for $LIMIT"
END
COPY --chmod=755 <<-"END" /opt/own/written
	#!/bin/sh
	echo written $LIMIT
	END
"""
LOOK = (
    "cat /etc/own.conf /opt/made/text /app/here numbers.txt; tool; LIMIT=4 said; LIMIT=4 written; echo $LIMIT; "
    "touch /app/new && ls /app | wc -l"
)
SEEN = 'from-system\nmade\na heredoc\n1\n2\n7\nran\nit\'s "said" for 4\nwritten 4\n3\n3\n'


def a_folder(tmp_path: Path, **files: str) -> Path:
    task = {"environment/Dockerfile": DOCKERFILE, "environment/run.sh": "#!/bin/sh\necho ran\n", "tests/test.sh": TEST}
    a_task(tmp_path / "tasks" / "one", **task | {name.replace("__", "/"): text for name, text in files.items()})
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("forge: ./forge.py:forge\n  seen: ./forge.py:seen", ""))
    return tmp_path


def tasks(folder: Path, **args: Any) -> list[Task]:
    settings = TaskSettings(source="harbor", args={"path": "tasks", "build": True, "bases": BASES, **args})
    return load_tasks(settings, folder, seed=0).tasks


@pytest.fixture
def engine(docker_host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: F811
    """The engine's client. Images of tasks are removed."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    api = engine_api(docker_host)
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setenv("AGENTRL_CACHE", cache)
        yield api
    for image in api.images():
        for tag in image["RepoTags"] or ():
            if tag.startswith(TASKS):
                api.remove_image(tag, force=True)


@pytest.mark.parametrize("backend", ["docker", "namespace"])
def test_a_folder_is_built_and_played(engine: Any, tmp_path: Path, backend: str) -> None:
    folder = a_folder(tmp_path)
    (folder / "look.py").write_text(
        "from agentrl import Say\n\n"
        f"def look(task, rng):\n    yield Say(calls=[('shell', {{'command': {LOOK!r}}})])\n    yield Say('Done.')\n"
    )
    settings = {
        "sandbox.use": backend, "scripts.look": "./look.py:look", "limits.sandbox_s": 300,
        "tasks.args": {"path": "tasks", "bases": BASES},
    }  # fmt: skip
    run = agentrl.rollout(folder, 1, script="look", out=folder / "look", overrides=settings, reporters=())
    (call,) = run.calls
    assert (call.result + "\n", run.episodes[0].reward) == (SEEN, 0.0)
    run = agentrl.rollout(folder, 1, script="oracle", out=folder / "gold", overrides=settings, reporters=())
    assert [episode.reward for episode in run.episodes] == [1.0], run.episodes


VERIFIER = """\
FROM agentrl/base:latest
RUN mkdir -p /opt/grader && echo 10 > /opt/grader/gold
WORKDIR /opt/grader
COPY test.sh /tests/
"""
GRADER = """\
test "$(cat /app/sum.txt)" = "$(cat gold)" && test -z "$LIMIT" && ! test -e /app/numbers.txt || exit 1
echo 1 > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize("backend", ["docker", "namespace"])
def test_a_verifier_of_its_own_is_built(engine: Any, tmp_path: Path, backend: str) -> None:
    folder = a_folder(tmp_path)
    (folder / "tasks/one/task.toml").write_text(
        TOML.replace("[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n')
    )
    (folder / "tasks/one/tests/Dockerfile").write_text(VERIFIER)
    (folder / "tasks/one/tests/test.sh").write_text(GRADER)
    (folder / "none.py").write_text(
        "from agentrl import Say\n\ndef nothing(task, rng):\n"
        "    yield Say(calls=[('shell', {'command': 'echo 11 > /app/sum.txt; echo 1 > /logs/artifacts/reward.txt'})])\n"
        "    yield Say('Done.')\n"
    )
    settings = {
        "sandbox.use": backend, "scripts.nothing": "./none.py:nothing", "limits.sandbox_s": 300,
        "tasks.args": {"path": "tasks", "bases": BASES},
    }  # fmt: skip
    for script, reward in {"oracle": 1.0, "nothing": 0.0}.items():
        run = agentrl.rollout(folder, 1, script=script, out=folder / script, overrides=settings, reporters=())
        assert [episode.reward for episode in run.episodes] == [reward], [episode.notes for episode in run.episodes]
    (folder / "tasks/one/environment/Dockerfile").write_text("FROM agentrl/base\nWORKDIR /app\n")
    with pytest.raises(TaskError, match=r"(?s)a verifier that is built \(tests/Dockerfile\).*build: true"):
        tasks(folder, build=False, bases={})


def test_an_unchanged_folder_is_built_once(engine: Any, tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (first,) = tasks(folder)
    assert first.sandbox is not None
    assert first.sandbox["image"].startswith(f"{TASKS}one:")
    assert first.data["harbor"]["left_to_the_image"] == []
    made = engine.inspect_image(first.sandbox["image"])["Created"]
    (again,) = tasks(folder)
    assert again.sandbox == first.sandbox
    assert engine.inspect_image(first.sandbox["image"])["Created"] == made
    (folder / "tasks/one/environment/numbers.txt").write_text("4\n")
    (other,) = tasks(folder)
    assert other.sandbox is not None
    assert other.sandbox["image"] != first.sandbox["image"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"environment__Dockerfile": "FROM nobody/has:1\n"},
            "Dockerfile:1: the engine has no image 'nobody/has:1'.*docker pull nobody/has:1.*bases",
        ),
        ({"environment__Dockerfile": "FROM agentrl/pyth\n"}, "agentrl sandbox build pyth"),
        ({"environment__Dockerfile": "FROM agentrl/base:latest\nRUN echo begun && false\n"}, "its build failed: .*"),
        (
            {"environment__Dockerfile": "FROM agentrl/base:latest\nRUN echo begun && sleep 600\n",
             "task.toml": TOML.replace("build_timeout_sec = 600.0", "build_timeout_sec = 5.0")},
            "its build did not end within 5 s: .*build_timeout_sec",
        ),
        ({"environment__Dockerfile": "FROM scratch\nCOPY numbers.txt /x\nRUN echo x\n"}, "its base image has no shell"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused_in_words(
    engine: Any, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    folder = a_folder(tmp_path, **files)
    with pytest.raises(TaskError, match=f"(?s){said}"):
        tasks(folder)
    with pytest.raises(TaskError, match="no task; left out 1"):
        tasks(folder, skip=True)
    assert not engine.containers(all=True, filters={"label": "agentrl.task"}), "no container of a build stays"


@pytest.mark.parametrize("command", ["sleep 100", "while true; do echo again; sleep 0.2; done"])
def test_a_build_that_takes_too_long_ends(engine: Any, tmp_path: Path, command: str) -> None:
    toml = TOML.replace("build_timeout_sec = 600.0", "build_timeout_sec = 4.0")
    folder = a_folder(tmp_path, **{"environment__Dockerfile": f"FROM agentrl/base\nRUN {command}\n", "task.toml": toml})
    before = {each["Id"] for each in engine.containers(all=True)}
    with pytest.raises(TaskError, match="did not end within 4 s") as kept:
        tasks(folder)
    until(lambda: {each["Id"] for each in engine.containers(all=True)} <= before)
    assert kept.value.remedy


def test_without_an_engine_a_dockerfile_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    folder = a_folder(tmp_path, environment__Dockerfile="FROM x\nRUN apt-get install -y jq\nWORKDIR /app\n")
    with pytest.raises(TaskError, match=r"no container engine answers[\s\S]*tasks\.args\.build: false"):
        tasks(folder)
    (task,) = tasks(folder, build=None)
    assert task.data["harbor"]["left_to_the_image"] == ["apt-get install -y jq"]
    said = check(str(folder), []).warnings
    assert "no container engine answers: Dockerfiles are replayed in the sandbox, not built (one)" in said
    with pytest.raises(TaskError, match="image or build"):
        tasks(folder, image="agentrl/swe")
