"""Harbor tasks of several steps: an instruction, tests and a reward for each, in one sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl import Say
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.integrations.harbor.cautions import _lacking
from agentrl.integrations.harbor.tool import Harbor
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError

TOML = """\
multi_step_reward_strategy = "mean"
[environment]
allow_internet = false
workdir = "/app"
[[steps]]
name = "one"
min_reward = {reward = 0.5, tidy = 1}
[[steps]]
name = "two"
[steps.verifier]
timeout_sec = 20
env = {WANTED = "2"}
[[steps]]
name = "three"
"""
COMMON = """\
echo "$(cat /tests/name) $WANTED $(ls /app | tr '\\n' ' ')" >> /app/.seen
if [ "$(cat /app/$(cat /tests/name) 2>/dev/null)" = right ]; then right=1; else right=0; fi
echo "{\\"reward\\": $right, \\"tidy\\": 1, \\"speed\\": 0.5}" > /logs/verifier/reward.json
"""
RECIPE = """\
name: steps
tasks: {source: harbor, args: {path: tasks, build: false}}
agent: {max_turns: 8, format: hermes}
tools: [harbor, shell]
rewards: {harbor: {}}
scripts: {oracle: "agentrl.integrations.harbor.tasks:oracle", agent: "tests.integrations.test_harbor_steps:agent"}
"""
acts: list[str] = []
"""Commands of the agent, one each step."""


def agent(task: Any, rng: Any) -> Any:
    for act in acts:
        yield Say(calls=[("shell", {"command": act})])
        yield Say("Done.")


def a_folder(folder: Path, **files: str) -> Path:
    content = {
        "recipe.yaml": RECIPE,
        "tasks/job/task.toml": TOML,
        "tasks/job/tests/test.sh": COMMON,
        **{f"tasks/job/steps/{name}/instruction.md": f"Do {name}." for name in ("one", "two", "three")},
        **{f"tasks/job/steps/{name}/tests/name": name for name in ("one", "two", "three")},
        **{
            f"tasks/job/steps/{name}/solution/solve.sh": f"echo right > /app/{name}" for name in ("one", "two", "three")
        },
        "tasks/job/steps/two/workdir/given": "for step two",
        "tasks/job/steps/two/workdir/setup.sh": "echo was run > made",
    }
    for name, text in (content | files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def played(folder: Path, script: str, *commands: str) -> Episode:
    acts[:] = commands
    run = agentrl.rollout(folder, 1, script=script, out=folder / f"run-{script}-{len(commands)}", reporters=())
    (episode,) = run.whole_episodes()
    return episode


def shown(episode: Episode) -> list[str]:
    return [
        str(message["content"]) for turn in episode.turns for message in turn.observations if message["role"] == "user"
    ]


@pytest.mark.slow
def test_each_step_is_asked_for_and_verified(tmp_path: Path) -> None:
    episode = played(a_folder(tmp_path), "oracle")
    assert (episode.reward, episode.stop) == (1.0, "answer"), episode.error
    assert [each for each in shown(episode) if each.startswith("Do ")] == ["Do two.", "Do three."]
    assert episode.notes["harbor"] == "one: 1; two: 1; three: 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "commands", "reward"),
    [
        ("mean", ["echo right > one", "echo wrong > two", "cat .seen; echo right > three"], 2 / 3),
        ("final", ["echo right > one", "true", "echo right > three"], 1.0),
        ("final", ["echo right > one", "echo right > two", "echo wrong > three"], 0.0),
        ("mean", ["echo wrong > one", "echo right > two", "echo right > three"], 0.0),
        ("final", ["echo wrong > one", "echo right > two", "echo right > three"], 0.0),
    ],
)
def test_how_steps_add_up(tmp_path: Path, strategy: str, commands: list[str], reward: float) -> None:
    toml = TOML.replace('"mean"', f'"{strategy}"')
    episode = played(a_folder(tmp_path, **{"tasks/job/task.toml": toml}), "agent", *commands)
    assert episode.reward == pytest.approx(reward), episode.notes
    if "wrong > one" in commands[0]:
        assert episode.notes["harbor"].endswith("two: not reached; three: not reached"), "below min_reward"
    if ".seen" in commands[2]:
        seen = next(call.result for turn in episode.turns for call in turn.calls if ".seen" in str(call.arguments))
        assert seen == "one  one \ntwo 2 given made one two ", "step two had its files, its variables and its tests"


@pytest.mark.slow
def test_tests_and_verdicts_of_a_step_are_gone_in_the_next(tmp_path: Path) -> None:
    forge = (
        "echo right > one; (while true; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; done) >/dev/null 2>&1 &"
    )
    episode = played(a_folder(tmp_path), "agent", forge, "find /tests /logs/verifier -type f", "true")
    found = next(call.result for turn in episode.turns for call in turn.calls if "find" in str(call.arguments))
    assert found.strip() in ("", "(no output)"), found
    assert episode.reward == pytest.approx(1 / 3), episode.notes


@pytest.mark.slow
def test_a_verdict_that_does_not_count_opens_no_step(tmp_path: Path) -> None:
    forge = 'echo \'{"reward": 1, "tidy": 1}\' > /logs/verifier/reward.json; kill -9 $PPID'
    test = "bash /app/program\n" + COMMON
    folder = a_folder(tmp_path, **{"tasks/job/tests/test.sh": test})
    episode = played(folder, "agent", f"cat > program <<'END'\n{forge}\nEND", "echo right > two", "echo right > three")
    assert (episode.reward, episode.error) == (0.0, None), episode.notes
    assert episode.notes["harbor"].endswith("two: not reached; three: not reached")


@pytest.mark.slow
@pytest.mark.parametrize("act", ["mkdir -p given/taken", "mkdir setup.sh; touch setup.sh/x", "mkdir made"])
def test_an_agent_in_the_way_of_the_next_step_does_not_void_the_episode(tmp_path: Path, act: str) -> None:
    episode = played(a_folder(tmp_path), "agent", f"echo right > one; {act}", "true", "true")
    assert episode.reward == pytest.approx(1 / 3), (episode.error, episode.notes)
    assert "two: it cannot begin: " in episode.notes["harbor"]


@pytest.mark.slow
def test_tests_between_steps_have_their_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Harbor, "timeout_s", 0.2)
    folder = a_folder(tmp_path, **{"tasks/job/tests/test.sh": "sleep 0.5\n" + COMMON})
    assert (episode := played(folder, "oracle")).reward == 1.0, episode.error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "three"])
def test_a_step_whose_verifier_lacks_a_program_measures_nothing(tmp_path: Path, name: str) -> None:
    lacking = f'if [ "$(cat /tests/name)" = {name} ]; then no-such-grader; exit 127; fi\n' + COMMON
    folder = a_folder(tmp_path, **{"tasks/job/tests/test.sh": lacking})
    episode = played(folder, "oracle")
    assert (episode.status, episode.reward) == ("user_error", None), episode.notes
    assert episode.error is not None
    assert f"the verifier of step {name!r} lacks no-such-grader" in episode.error.message


@pytest.mark.slow
def test_an_agent_cannot_get_out_of_a_step_by_a_missing_program(tmp_path: Path) -> None:
    planted = "if [ -e /app/out ]; then echo 'x: foo: command not found'; exit 127; fi\n" + COMMON
    folder = a_folder(tmp_path, **{"tasks/job/tests/test.sh": planted})
    episode = played(folder, "agent", "echo right > one", "echo right > two", "touch out")
    assert episode.reward == pytest.approx(2 / 3), (episode.error, episode.notes)


def test_programs_of_the_tests_of_steps_are_looked_up(tmp_path: Path) -> None:
    """A task may have tests in its steps only."""
    folder = a_folder(tmp_path, **{"tasks/job/steps/two/tests/test.sh": "no-such-grader --all\n"}) / "tasks" / "job"
    (folder / "tests" / "test.sh").unlink()
    assert _lacking(folder) == {"no-such-grader"}


def test_what_of_steps_is_refused_in_words(tmp_path: Path) -> None:
    for toml, said in {
        TOML + '[steps.verifier]\nenvironment_mode = "separate"\n': "several steps .* with a verifier apart",
        TOML + '[[steps]]\nname = "four"\n': "step 'four' has no instruction.md",
        TOML + '[[steps]]\nname = "../out"\n': r"steps\.3\.name",
    }.items():
        folder = a_folder(tmp_path, **{"tasks/job/task.toml": toml})
        with pytest.raises(TaskError, match=said):
            load_tasks(TaskSettings(source="harbor", args={"path": "tasks"}), folder, seed=0)
    folder = a_folder(tmp_path, **{"tasks/job/task.toml": "[environment]\n"})
    with pytest.raises(TaskError, match=r"there is no instruction\.md"):
        load_tasks(TaskSettings(source="harbor", args={"path": "tasks"}), folder, seed=0)
