"""Recipes on top of others: what is merged, whence paths and lines come, the control, and what is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from agentrl.api.run_files import code_beside
from agentrl.config.bases import read_recipe, recipe_schema
from agentrl.config.files import method_files, read_tree
from agentrl.config.loader import explain_recipe, load_recipe
from agentrl.rollouts.builder import build
from agentrl.types.errors import RecipeError
from agentrl.types.paths import data_path

BASE = """
name: base
about: {trains: counting, measured: from 0.1 to 0.9}
tasks: {source: "./task.py:counts", args: {n: 3, sandboxed: ./run.sh}}
agent: {max_turns: 4, system: Count.}
rewards: {exact_match: {}, f1: {weight: 0.5}}
credit: {gae: {lam: 0.9}}
model: {path: ./weights}
train: {groups: 2, lr: 1.0e-3}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "plain", "recipe.yaml", BASE)
    write(tmp_path / "plain", "task.py", "def counts(n, sandboxed): ...\n")
    (tmp_path / "plain/weights").mkdir()
    return tmp_path


def write(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(dedent(text))
    return str(folder / name)


def test_the_keys_of_a_recipe_are_merged_over_its_base(folder: Path) -> None:
    name = write(folder / "new", "method.yaml", "base: ../plain\nagent: {max_turns: 9}\ntrain: {groups: 5}\n")
    recipe = load_recipe(name)
    assert (recipe.name, recipe.agent.max_turns, recipe.agent.system) == ("method", 9, "Count.")
    assert recipe.train is not None
    assert (recipe.train.groups, recipe.train.lr) == (5, 1e-3)
    assert recipe.about.measured is None, "what was measured with the base says nothing about this recipe"


def test_another_plug_in_replaces_that_of_the_base_and_null_takes_an_entry_out(folder: Path) -> None:
    name = write(folder / "new", "method.yaml", "base: ../plain\ncredit: grpo\nrewards: {f1: null, format: {}}\n")
    recipe = load_recipe(name)
    assert (recipe.credit.use, recipe.credit.settings) == ("grpo", {})
    assert list(recipe.rewards) == ["exact_match", "format"]


def test_paths_of_a_base_are_relative_to_its_own_folder(folder: Path) -> None:
    recipe = load_recipe(write(folder / "new", "method.yaml", "base: ../plain/recipe.yaml\n"))
    assert recipe.tasks.source == "../plain/task.py:counts"
    assert recipe.tasks.args["sandboxed"] == "./run.sh", "an argument of the user's function is left to it"
    assert recipe.model is not None
    assert recipe.model.path == str(folder / "plain/weights")
    assert recipe.base == folder / "new"


def test_a_base_may_have_a_base(folder: Path) -> None:
    write(folder / "new", "one.yaml", 'base: ../plain\nagent: {max_turns: 9}\nscripts: {own: "./play.py:own"}\n')
    write(folder / "new", "play.py", "")
    name = write(folder / "newer", "two.yaml", "base: ../new/one.yaml\ntrain: {groups: 7}\n")
    recipe = load_recipe(name)
    assert recipe.train is not None
    assert (recipe.agent.max_turns, recipe.train.groups) == (9, 7)
    assert (recipe.scripts["own"], recipe.tasks.source) == ("../new/play.py:own", "../plain/task.py:counts")
    shown = explain_recipe(name)
    for line in ("groups: 7 # two.yaml:2", "max_turns: 9 # one.yaml:2", "lr: 0.001 # recipe.yaml:9"):
        assert line in shown


def test_a_shipped_recipe_is_a_base_by_its_name_and_a_mapping_may_have_one() -> None:
    recipe = load_recipe({"base": "quickstart", "name": "mine", "train": {"iterations": 3}})
    assert recipe.name == "mine"
    assert recipe.train is not None
    assert recipe.train.iterations == 3
    assert list(recipe.rewards) == list(load_recipe("quickstart").rewards)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("base: ../plain\nagent: {max_turn: 9}\n", "method.yaml:2", "unknown key"),
        ("base: ../plain\n\ntrain:\n  groups: none\n", "method.yaml:4", "train.groups"),
        ("base: ../nowhere\n", "method.yaml:1", "there is no recipe '../nowhere'"),
        ("name: x\nbase: ./method.yaml\n", "method.yaml:2", "is this recipe"),
        ("base: [a]\n", "method.yaml:1", "base must be a recipe"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(folder: Path, text: str, place: str, message: str) -> None:
    name = write(folder / "new", "method.yaml", text)
    with pytest.raises(RecipeError, match=message) as raised:
        load_recipe(name)
    assert str(raised.value.place).endswith(place)
    assert message == "train.groups" or raised.value.remedy


def test_an_error_of_the_base_is_told_with_the_place_in_the_base(folder: Path) -> None:
    write(folder / "plain", "recipe.yaml", BASE + "concurrency: 0\n")
    with pytest.raises(RecipeError, match="concurrency") as raised:
        load_recipe(write(folder / "new", "method.yaml", "base: ../plain\n"))
    assert str(raised.value.place).endswith("plain/recipe.yaml:10")


def test_bases_that_refer_to_each_other_are_refused(folder: Path) -> None:
    write(folder / "new", "one.yaml", "base: ./two.yaml\n")
    name = write(folder / "new", "two.yaml", "base: ./one.yaml\n")
    with pytest.raises(RecipeError, match="has it as a base"):
        load_recipe(name)


def test_the_control_takes_the_method_out(folder: Path) -> None:
    text = "base: ../plain\ncredit: rloo\nagent: {max_turns: 9}\ncontrol: {credit: grpo, agent: {max_turns: 4}}\n"
    name = write(folder / "new", "method.yaml", text)
    treated, control = load_recipe(name), load_recipe(name, (), "control")
    assert (treated.credit.use, treated.agent.max_turns, treated.name) == ("rloo", 9, "method")
    assert (control.credit.use, control.agent.max_turns, control.name) == ("grpo", 4, "method-control")
    assert load_recipe(name, ["agent.max_turns=2"], "control").agent.max_turns == 2


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("base: ../plain\n", "has no section 'control'", "method.yaml"),
        ("base: ../plain\ncontrol: {agent: {max_turns: 4}}\n", "changes nothing", "method.yaml:2"),
        ("base: ../plain\ncontrol: {credits: grpo}\n", "credits: unknown key", "method.yaml:2"),
    ],
)
def test_a_control_that_is_no_control_is_refused(folder: Path, text: str, message: str, place: str) -> None:
    name = write(folder / "new", "method.yaml", text)
    with pytest.raises(RecipeError, match=message) as raised:
        load_recipe(name, (), "control")
    assert str(raised.value.place).endswith(place)


@pytest.mark.slow  # loads all methods
def test_a_method_is_found_by_its_name() -> None:
    for file in method_files():
        assert load_recipe(file.parent.name if file.name == "recipe.yaml" else file.stem).name


def test_keys_that_name_code_of_the_base_are_moved_too(folder: Path) -> None:
    write(folder / "plain", "recipe.yaml", BASE + 'tools: [{"./task.py:Tool": {fast: true}}]\n')
    recipe = load_recipe(write(folder / "new", "method.yaml", "base: ../plain\n"))
    assert [(tool.use, tool.settings) for tool in recipe.tools] == [("../plain/task.py:Tool", {"fast": True})]


def test_the_working_folder_does_not_choose_the_base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "elsewhere", "x", "")
    write(folder / "elsewhere/quickstart", "recipe.yaml", BASE)
    monkeypatch.chdir(folder / "elsewhere")
    assert "exact_match" not in load_recipe(write(folder / "new", "method.yaml", "base: quickstart\n")).rewards
    with pytest.raises(RecipeError, match=r"there is no recipe '\.\./babyai/learn\.yaml'"):
        load_recipe(write(folder / "new", "method.yaml", "base: ../babyai/learn.yaml\n"))


def test_null_on_a_key_that_is_not_there_is_refused(folder: Path) -> None:
    for text in ("train: {kll: null}", "curriculm: null", "rewards: {bonsu: null}"):
        with pytest.raises(RecipeError):
            build(load_recipe(write(folder / "new", "method.yaml", f"base: ../plain\n{text}\n")))


def test_one_setting_of_the_plug_in_of_the_base_is_no_other_plug_in(folder: Path) -> None:
    credit = load_recipe(write(folder / "new", "method.yaml", "base: ../plain\ncredit: {lam: 0.5}\n")).credit
    assert (credit.use, credit.settings) == ("gae", {"lam": 0.5})
    credit = load_recipe(write(folder / "new", "method.yaml", "base: ../plain\ncredit: {lam: null}\n")).credit
    assert (credit.use, credit.settings) == ("gae", {})


def test_an_alias_in_the_base_is_not_changed_with_its_anchor(folder: Path) -> None:
    text = BASE.replace("tasks: {", "tasks: &t {") + "eval: {tasks: *t}\n"
    write(folder / "plain", "recipe.yaml", text)
    recipe = load_recipe(write(folder / "new", "method.yaml", "base: ../plain\ntasks: {limit: 3}\n"))
    assert recipe.eval is not None
    assert recipe.eval.tasks is not None
    assert (recipe.tasks.limit, recipe.eval.tasks.limit) == (3, None)


def test_a_control_that_writes_a_default_out_changes_nothing(folder: Path) -> None:
    name = write(folder / "new", "method.yaml", "base: ../plain\ncontrol: {curriculum: []}\n")
    with pytest.raises(RecipeError, match="changes nothing"):
        load_recipe(name, (), "control")


def test_an_idle_control_is_told_whatever_overrides_change(folder: Path) -> None:
    name = write(folder / "new", "method.yaml", "base: ../plain\nseed: 0\ncontrol: {seed: 3}\n")
    with pytest.raises(RecipeError, match=r"method.yaml:3: 'control' changes nothing"):
        load_recipe(name, ["seed=4", "name=x"], "control")


def test_a_control_may_have_a_name(folder: Path) -> None:
    name = write(folder / "new", "method.yaml", "base: ../plain\ncontrol: {name: other, seed: 3}\n")
    assert load_recipe(name, (), "control").name == "other-control"


def test_code_of_the_base_is_hashed_with_the_run(folder: Path) -> None:
    recipe = load_recipe(write(folder / "new", "method.yaml", "base: ../plain\n"))
    before = code_beside(recipe.base, recipe.model_dump(mode="json"))
    (folder / "plain/task.py").write_text("def counts(n, sandboxed): return []\n")
    assert before != code_beside(recipe.base, recipe.model_dump(mode="json"))
    assert set(before) == {"../plain/task.py"}


@pytest.mark.parametrize(
    ("base", "method", "place"),
    [
        ("train: {max_staleness: 2}", "seed: 1\ntrain: {groups: 5}", "plain/recipe.yaml:10"),
        ("train: {old_logprobs: engine}", "seed: 1\ntrain: {importance: {high: 2}}", "method.yaml:3"),
        ("policies:\n  user: {script: random}", "policies:\n  foe:\n    engin: {}", "method.yaml:4"),
        ("policies:\n  user: {scrpt: random}", "policies:\n  foe: {script: random}", "plain/recipe.yaml:11"),
        ("tools: [answer]", "tools:\n  - answer\n  - {use: [1]}", "method.yaml:4"),
        ("seed: 1", "eval:\n  every: 1\n  episodes: none", "method.yaml:4"),
        ("seed: 1", "eval:\n  every: 1\n  tasks:\n    limit: 3", "method.yaml:4"),
        ("train: {lr: none}\nstages: [{name: a, rl: }]", "seed: 2", "plain/recipe.yaml:10"),
        ("seed: 1", "scale: {use: ray}", "method.yaml:1"),
    ],
)
def test_each_key_is_told_with_the_file_that_set_it(folder: Path, base: str, method: str, place: str) -> None:
    write(folder / "plain", "recipe.yaml", BASE.replace("train: {groups: 2, lr: 1.0e-3}\n", "\n") + base + "\n")
    with pytest.raises(RecipeError) as raised:
        load_recipe(write(folder / "new", "method.yaml", f"base: ../plain\n{method}\n"))
    assert str(raised.value).partition(": ")[0].endswith(place), str(raised.value)


def test_files_of_one_name_are_told_apart(folder: Path) -> None:
    name = write(folder / "new", "recipe.yaml", "base: ../plain\ntrain: {groups: 5, lora: {rank: 4}}\n")
    shown = {line.strip() for line in explain_recipe(name).splitlines()}
    assert {"groups: 5 # new/recipe.yaml:2", "lr: 0.001 # plain/recipe.yaml:9", "alpha: 32.0"} <= shown


OF_THE_SANDBOX = """
name: base
tasks: {source: "./task.py:counts", args: {script: ./run.sh}}
agent: {program: [python, ./agent.py], where: sandbox, env: {HELPERS: ./lib}}
sandbox:
  spec: {files: {./run.sh: ./run.sh}, setup: ./run.sh, env: {SCRIPT: ./run.sh}}
  pool: 1
tools:
  - shell: {setup: ./lib}
  - ./task.py:Tool
rewards: {exact_match: , "./task.py:won": {weight: 0}, judged: {use: "./task.py:judged", rubric: ../rubric.txt}}
model: {path: ./weights, template: ./chat.jinja}
engine: {use: vllm, args: [./run.sh], transfer: {use: "./task.py:Mine", folder: ./lib}}
policies: {user: {checkpoint: ./weights}}
scripts: {oracle: "./task.py:oracle"}
sampling: {stop: [./run.sh]}
stages:
  - {name: first, sft: {jsonl: talk.jsonl}}
  - {name: second, sft: {run: ./run.sh}}
  - {name: third, rl: {tasks: {jsonl: ./rows.jsonl, prompt: ./run.sh}}}
"""


def test_only_keys_that_are_paths_or_code_are_moved(folder: Path) -> None:
    write(folder / "plain", "recipe.yaml", OF_THE_SANDBOX)
    for name in ("run.sh", "agent.py", "talk.jsonl", "chat.jinja", "rows.jsonl"):
        write(folder / "plain", name, "")
    (folder / "plain/lib").mkdir()
    write(folder / "new", "method.yaml", "base: ../plain\n")
    tree = read_recipe(folder / "new/method.yaml").values
    assert tree["sandbox"] == {
        "spec": {"files": {"./run.sh": "./run.sh"}, "setup": "./run.sh", "env": {"SCRIPT": "./run.sh"}},
        "pool": 1,
    }
    assert tree["tasks"] == {"source": "../plain/task.py:counts", "args": {"script": "./run.sh"}}
    assert tree["sampling"] == {"stop": ["./run.sh"]}
    assert tree["agent"]["command"] == ["python", "../plain/agent.py"]
    assert tree["agent"]["files"] == ["../plain/agent.py"], "what the program of a sandbox is, goes into it"
    assert tree["tools"] == [{"setup": "../plain/lib", "use": "shell"}, {"use": "../plain/task.py:Tool"}]
    assert tree["rewards"]["judged"] == {"use": "../plain/task.py:judged", "rubric": "../rubric.txt"}
    assert tree["model"] == {"path": "../plain/weights", "template": "../plain/chat.jinja"}
    transfer = {"use": "../plain/task.py:Mine", "folder": "../plain/lib"}
    assert tree["engine"] == {"use": "vllm", "args": ["./run.sh"], "transfer": transfer}
    assert tree["policies"] == {"user": {"checkpoint": "../plain/weights"}}
    assert tree["scripts"] == {"oracle": "../plain/task.py:oracle"}
    first, second, third = tree["stages"]
    assert first["sft"] == {"jsonl": "../plain/talk.jsonl"}, "always a path"
    assert second["sft"] == {"run": "../plain/run.sh"}
    assert third["rl"]["tasks"] == {"jsonl": "../plain/rows.jsonl", "prompt": "./run.sh"}


def test_arguments_of_a_built_in_source_are_moved(folder: Path) -> None:
    write(folder / "plain", "recipe.yaml", "name: x\ntasks: {source: harbor, args: {path: ./tasks}}\n")
    write(folder / "new", "method.yaml", "base: ../plain\n")
    assert read_recipe(folder / "new/method.yaml").values["tasks"]["args"] == {"path": "../plain/tasks"}


def test_the_schema_knows_all_keys_of_recipe_files() -> None:
    schema = recipe_schema()
    for file in data_path("recipes").glob("*/*.yaml"):
        tree = read_tree(file, "a recipe")
        assert set(tree) <= set(schema["properties"]), file
        assert set(tree.get("control", ())) <= set(schema["properties"]["control"]["properties"]), file
        assert any(set(form["required"]) <= set(tree) for form in schema["anyOf"]), file
    assert "base" not in schema["properties"]["control"]["properties"]
    assert "required" not in schema, "a recipe with a base has its name from the file"
