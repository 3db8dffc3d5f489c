"""Bad recipes and bad data: each error names the place and the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from agentrl.config.peers import PEERS
from agentrl.config.recipe import Recipe
from agentrl.config.sections import section_at
from agentrl.curriculum.task_source import load_tasks
from agentrl.estimators.registry import load_credit
from agentrl.models.load import find_model
from agentrl.rollouts.builder import build
from agentrl.rollouts.policy_models import checkpoint_of
from agentrl.types.errors import AgentRLError

GOOD = """\
name: demo
tasks: ./task.py:tasks
agent:
  max_turns: 4
tools: [./task.py:Door]
rewards: {exact_match: {}}
train:
  lr: 1.0e-5
"""

CODE = """
from agentrl import Agent, Task, Tool, tool

def tasks():
    yield Task.of("a", "Go.", answer="x")

class Door(Tool):
    def __init__(self, width: int = 1): self.width = width
    @tool
    async def open_door(self, side: str) -> str:
        return side

class Walker(Agent):
    async def run(self, session): pass

@tool
async def open_door(side: str) -> str:
    return side

@tool
async def untyped(side) -> str:
    return side

class Nothing(Tool): pass

def broken():
    return 1 / 0

@tool
async def calls(back: type) -> str:
    return ""

@tool
async def hidden(_how: int) -> str:
    return ""

@tool
async def ordered(how: int, /) -> str:
    return ""
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(GOOD)
    return tmp_path


def fails(folder: Path, text: str, *overrides: str) -> str:
    """The error that checking a recipe ends with."""
    (folder / "recipe.yaml").write_text(text)
    with pytest.raises(AgentRLError) as caught:
        recipe = load_recipe(str(folder), overrides)
        build(recipe)
        load_credit(recipe.credit, recipe.base)
        load_tasks(recipe.tasks, recipe.base, recipe.seed)
    return f"{caught.value}\n"


def test_a_good_one_loads_and_overrides_apply(folder: Path) -> None:
    recipe = load_recipe(str(folder), ["train.lr=1e-3", "tools.0.width=3", "sampling.temperature=0.5"])
    assert recipe.train is not None
    assert (recipe.train.lr, recipe.sampling.temperature) == (1e-3, 0.5)
    tools = build(recipe).make_tools()
    assert tools[0].width == 3  # type: ignore[attr-defined]
    short = load_recipe(str(folder), ["credit=rloo", "sandbox=docker", "train.loss={dapo: {}}"])
    assert (short.credit.use, short.sandbox.use, short.train.loss.use) == ("rloo", "docker", "dapo")
    assert load_recipe(str(folder), ["sandbox.spec.setup=make"]).sandbox.spec.setup == ("make",)
    flat = load_recipe(str(folder), ["tools=[{use: ./task.py:Door, width: 4}]"])
    assert build(flat).make_tools()[0].width == 4  # type: ignore[attr-defined]


SHORT = {
    "tools: [./task.py:Door]": {"tools.0.width=3": {"width": 3}},
    "tools: [{./task.py:Door: {width: 2}}]": {"tools.0.width=3": {"width": 3}},
    "tools: [{use: ./task.py:Door, width: 2}]": {"tools.0.width=3": {"width": 3}, "tools.0.use=shell": {"width": 2}},
}


@pytest.mark.parametrize(("text", "override"), [(text, each) for text, sets in SHORT.items() for each in sets])
def test_overrides_reach_into_every_form_of_a_tool(folder: Path, text: str, override: str) -> None:
    (folder / "recipe.yaml").write_text(GOOD.replace("tools: [./task.py:Door]", text))
    assert load_recipe(str(folder), [override]).tools[0].settings == SHORT[text][override]


@pytest.mark.parametrize(
    ("text", "override", "found"),
    [
        ("engine: vllm", "engine.urls=[http://a]", {"use": "vllm", "urls": ["http://a"]}),
        ("scale: process", "scale.rollout_workers=2", {"use": "process", "rollout_workers": 2}),
        ("sandbox: docker", "sandbox.pool=4", {"use": "docker", "pool": 4}),
        ("sandbox: docker", "sandbox.spec.memory_mb=64", {"use": "docker"}),
        ("credit: gigpo", "credit.gamma=.5", {"use": "gigpo", "gamma": 0.5}),
        ("credit: {gigpo: {gamma: .9, std: none}}", "credit.gamma=.5", {"gamma": 0.5, "std": "none"}),
        ("curriculum: [dapo]", "curriculum.0.rounds=2", [{"use": "dapo", "rounds": 2}]),
        ("curriculum: [{dapo: {rounds: 3}}]", "curriculum.0.rounds=2", [{"use": "dapo", "rounds": 2}]),
        ("eval: {tasks: ./task.py:tasks}", "eval.tasks.limit=1", {"tasks": {"source": "./task.py:tasks", "limit": 1}}),
        ("eval:", "eval.episodes=3", {"episodes": 3}),
        ("limits:", "limits.retries=0", {"retries": 0}),
        ("scripts: {s: ./task.py:x}\nwarm_start: s", "warm_start.steps=3", {"script": "s", "steps": 3}),
    ],
)
def test_overrides_reach_into_short_forms(folder: Path, text: str, override: str, found: Any) -> None:
    def holds(value: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return all(holds(value[key], item) for key, item in wanted.items())
        if isinstance(wanted, list):
            return len(value) == len(wanted) and all(map(holds, value, wanted))
        return bool(value == wanted)

    (folder / "recipe.yaml").write_text(f"{GOOD}{text}\n")
    recipe = json.loads(load_recipe(str(folder), [override]).model_dump_json())
    assert holds(recipe[override.partition(".")[0]], found)


def test_overrides_reach_into_rewards_tasks_and_losses(folder: Path) -> None:
    short = GOOD.replace("{exact_match: {}}", "{a: ./task.py:broken, exact_match: }")
    (folder / "recipe.yaml").write_text(short.replace("lr: 1.0e-5", "{loss: {dapo: {clip_low: .1}}, kl: {coef: .1}}"))
    sets = ["rewards.a.weight=.5", "rewards.exact_match.weight=2", "tasks.limit=3", "train.loss.clip_high=.3"]
    recipe = load_recipe(str(folder), [*sets, "train.kl.coef=.2"])
    assert [(each.use, each.weight) for each in recipe.rewards.values()] == [("./task.py:broken", 0.5), (None, 2.0)]
    assert (recipe.tasks.source, recipe.tasks.limit) == ("./task.py:tasks", 3)
    assert recipe.train is not None
    assert recipe.train.loss.model_dump() == {"use": "dapo", "clip_low": 0.1, "clip_high": 0.3}


def test_an_override_cannot_reach_into_what_is_no_short_form(folder: Path) -> None:
    assert "--set seed.x=1: seed is a value and has no 'x'" in fails(folder, f"{GOOD}seed: 3\n", "seed.x=1")
    said = fails(folder, f"{GOOD}curriculum: [{{dapo: 3}}]\n", "curriculum.0.rounds=2")
    assert "--set curriculum.0.rounds=2: curriculum.0: the settings of dapo must be keys and values" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("max_turns: 4", "max_turn: 4"),
            ["recipe.yaml:4", "agent.max_turn", "unknown key", "did you mean 'max_turns'?"],
        ),
        (("lr: 1.0e-5", "learning_rate: 1.0e-5"), ["recipe.yaml:8", "train.learning_rate", "the key is train.lr;"]),
        (("lr: 1.0e-5", "gamma: 0.9"), ["train.gamma", "the key is credit: {use: NAME, gamma: ...}"]),
        (("lr: 1.0e-5", "num_generations: 8"), ["the key is train.group_size; allowed here: "]),
        (("lr: 1.0e-5", "batch_size: 8"), ["train.minibatch the episodes of an update; allowed here: "]),
        (("max_turns: 4", "max_steps: 4"), ["agent.max_steps", "the key is agent.max_turns"]),
        (("tasks: ./task.py", "dataset: ./task.py"), ["dataset: unknown key", "the key is tasks;"]),
        (("{exact_match: {}}", "[./task.py:open_door, exact_match]"), ["{open_door: ./task.py:open_door, exact_match"]),
        (("{exact_match: {}}", "[{exact_match: 1}]"), ["must be a mapping of names", "-> NAME: SETTINGS"]),
        (("max_turns: 4", "max_turns: many"), ["recipe.yaml:4", "agent.max_turns", "valid integer", "'many'"]),
        (("max_turns: 4", "max_turns: 0"), ["recipe.yaml:4", "greater than 0"]),
        (("lr: 1.0e-5", "lr: [1]"), ["recipe.yaml:8", "train.lr"]),
        (("name: demo\n", ""), ["recipe.yaml:1", "name", "missing"]),
        (("name: demo", "name: demo\nname: again"), ["recipe.yaml:2", "duplicate"]),
        (("max_turns: 4", "max_turns: 4\n bad"), ["recipe.yaml:", "not valid YAML"]),
        (("./task.py:tasks", "./tusk.py:tasks"), ["tusk.py", "there is no file"]),
        (("./task.py:tasks", "./task.py:taskz"), ["taskz", "did you mean 'tasks'?"]),
        (("./task.py:tasks", "no_such_module:tasks"), ["no_such_module", "install it"]),
        (("./task.py:tasks", "./task.py:broken"), ["division by zero"]),
        (("max_turns: 4", "format: ./task.py:Door"), ["agent.format", "not a Parser subclass"]),
        (("name: demo\n", "name: demo\nmodel: {path: x, template: ./none.jinja}\n"), ["none.jinja cannot be read"]),
        (("name: demo\n", "name: demo\nmodel: {path: x, template: chatlm}\n"), ["did you mean 'chatml'?"]),
        (("[./task.py:Door]", "[./task.py:Dor]"), ["Dor", "did you mean 'Door'?"]),
        (
            ("[./task.py:Door]", "[./task.py:Task]"),
            ["tools.0", "Task is a class", "not a Tool", "defines: Door, open_"],
        ),
        (("[./task.py:Door]", "[./task.py:tasks]"), ["tools.0", "a function (", "task.py:4)", "not a Tool"]),
        (("agent:", "agent:\n  use: ./task.py:Door"), ["agent: ", "kind Tool (", "task.py:7)", "defines: Walker\n"]),
        (("{exact_match: {}}", "{x: ./task.py:Door}"), ["rewards.x", "not a function", "defines: tasks, open_door, "]),
        (("rewards:", "scripts: {me: ./task.py:broken}\nrewards:"), ["scripts.me", "generator", "defines: tasks\n"]),
        (("rewards:", "scripts: {me: ./task.py:nobody}\nrewards:"), ["it has: tasks, Door, Walker, open_door, "]),
        (("[./task.py:Door]", "[serch]"), ["tools.0", "serch", "did you mean 'search'?"]),
        (("[./task.py:Door]", "[{./task.py:Door: {height: 2}}]"), ["tools.0", "height", "its settings: width"]),
        (("[./task.py:Door]", "[./task.py:Door, ./task.py:open_door]"), ["open_door", "both Door and open_door"]),
        (("[./task.py:Door]", "[./task.py:untyped]"), ["untyped", "no type hint"]),
        (("[./task.py:Door]", "[./task.py:calls]"), ["calls", "Cannot generate a JsonSchema", "-> take str, int"]),
        (("[./task.py:Door]", "[./task.py:hidden]"), ["hidden", "leading underscores", "plain names"]),
        (("[./task.py:Door]", "[./task.py:ordered]"), ["ordered: 'how' is positional only", "remove the /"]),
        (("[./task.py:Door]", "[./task.py:Nothing]"), ["Nothing", "no @tool method"]),
        (("{exact_match: {}}", "{exact_mtch: {}}"), ["exact_mtch", "exact_match"]),
        (("rewards:", "credit: {use: gippo}\nrewards:"), ["gippo", "gigpo"]),
        (("rewards:", "credit: gippo\nrewards:"), ["gippo", "gigpo"]),
        (("rewards:", "limits: tight\nrewards:"), ["limits", "a section of keys", "engine_failures"]),
        (("rewards:", "curriculum: [{dapo: 5}]\nrewards:"), ["settings of dapo must be keys and values"]),
        (("rewards:", "credit: {use: gigpo, gama: 1}\nrewards:"), ["gama", "gamma"]),
        (("rewards:", "sandbox: {spec: {memory: 5}}\nrewards:"), ["recipe.yaml:6", "memory", "memory_mb"]),
        (("max_turns: 4", "format: hermis"), ["hermis", "hermes"]),
        (("rewards:", "warm_start: {script: me}\nrewards:"), ["warm_start.script", "'me'"]),
        (("rewards:", "limits: {episode_s: .inf}\nrewards:"), ["recipe.yaml:6", "limits.episode_s: inf", "finite"]),
        (
            ("max_turns: 4", "use: ./task.py:Walker\n  since: 2024-05-01"),
            ["agent.since", "write it in quotes: '2024-05-01'"],
        ),
    ],
)
def test_each_mistake_is_explained(folder: Path, change: tuple[str, str], expected: list[str]) -> None:
    assert change[0] in GOOD
    message = fails(folder, GOOD.replace(*change))
    for part in expected:
        assert part in message, message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.learning_rate=1", ["--set train.learning_rate=1", "unknown key"]),
        ("train.staleness=0", ["train.staleness", "unknown key", "max_staleness"]),
        ("train.lr", ["write path.to.key=value"]),
        ("tools.7.use=x", ["not an index"]),
        ("name.first=x", ["name"]),
        ("train.lr=[", ["not a YAML value"]),
        ("train.lr=.inf", ["--set train.lr=.inf", "a finite number"]),
        ("agent={program: [x], history: as_template}", ["agent", "'history' does not reach a program"]),
        (
            "agent.history=no_thoughts",
            ["agent.history: must be 'as_sampled' or 'as_template', or a section of keys, found 'no_thoughts' (str)"],
        ),
        ("agent.history={last_image: 1}", ["agent.history.last_image: unknown key", "did you mean 'last_images'?"]),
        ("agent.history={last_images: 0}", ["agent.history.last_images: input should be greater than 0, found 0"]),
        ("policies.judge={checkpoint: {past: 1}}", ["policies.judge.checkpoint.every: is required and missing"]),
        (
            "policies.judge={checkpoint: 3}",
            ["policies.judge.checkpoint: must be a text, or a section of keys, found 3"],
        ),
        ("agent={program: [x], system: Hi}", ["agent", "'system' does not reach a program"]),
        ("policies.judge={checkpoint: {every: 1}, revision: a1}", ["policies.judge", "give it as 'checkpoint'"]),
        ("policies.judge={lora: {rank: 4}, train: true, sampling: {top_p: 0.5}}", ["policies.judge.sampling.top_p"]),
        ("model={scratch: {hidden: 30, heads: 4}}", ["model.scratch", "hidden (30) must be a multiple of 2 * heads"]),
        ("model={scratch: {hidden: 24, heads: 3, kv_heads: 2}}", ["heads (3) must be a multiple of kv_heads (2)"]),
        ("model={scratch: {}, revision: a1}", ["model", "a scratch model has no 'revision'"]),
        ("train.reward_model={objective: preference, reference: policy, sees: answer}", ["use start"]),
        ("base=nothing-like-it", ["base"]),
    ],
)
def test_bad_overrides(folder: Path, override: str, expected: list[str]) -> None:
    message = fails(folder, GOOD, override)
    for part in expected:
        assert part in message, message


@pytest.mark.parametrize(
    ("code", "expected"),
    [("def f():\n    return 1 / 0\nf()\n", "task.py:2 in f"), ("def f(:\n", "(task.py, line 1)")],
)
def test_code_that_cannot_be_imported_names_its_line(folder: Path, code: str, expected: str) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "task.py").write_text(code)
    assert fails(other, GOOD).rstrip().endswith(expected)


def test_no_such_recipe_names_the_nearest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(AgentRLError, match=f"did you mean {folder.name!r}"):
        load_recipe(folder.name[:-1] + "x")
    with pytest.raises(AgentRLError, match="did you mean 'quickstart'"):
        load_recipe("quickstrat")


def test_a_path_that_is_gone_says_what_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    kept = folder / "runs" / "demo" / "checkpoints" / "it-00002"
    kept.mkdir(parents=True)
    with pytest.raises(AgentRLError) as gone:
        load_recipe("runs/demo/checkpoints/it-00001")
    assert str(gone.value).endswith("did you mean 'it-00002'? runs/demo/checkpoints has: it-00002")
    with pytest.raises(AgentRLError, match="runs has: demo"):
        load_recipe("runs/d/x")
    with pytest.raises(AgentRLError, match="there is no recipe 'nowhere/x'\n  -> give a YAML file"):
        load_recipe("nowhere/x")
    with pytest.raises(AgentRLError, match="runs has: demo"):
        find_model("runs/other")
    with pytest.raises(AgentRLError, match=r"\./NAME: in the folder of the recipe\).*checkpoints has: it-00002$"):
        checkpoint_of("x", "runs/demo/checkpoints/it-00001")


def test_words_of_other_libraries_name_keys_that_exist() -> None:
    sections = Recipe.model_fields
    for key in {*PEERS.values()}:
        loc = tuple(key.split("."))
        section = section_at(Recipe, loc[:-1])
        assert loc[0] in sections
        assert section is not None
        assert loc[-1] in section.model_fields, key


JSONL = GOOD.replace("tasks: ./task.py:tasks", 'tasks: {jsonl: data.jsonl, prompt: "Q: {question}", id: key}')


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ('{"key": 1, "question": "a"}\n{"key": 2, "text": "b"}', ["data.jsonl:2", "no field 'question'", "key, text"]),
        ('{"key": 1, "question": "a"}\n{"key": 2,', ["data.jsonl:2", "not valid JSON"]),
        ("[1]", ["data.jsonl:1", "list"]),
        ('{"key": 1, "question": "a"}\n{"key": 1, "question": "b"}', ["'1'", "twice"]),
        ("", ["no task"]),
    ],
)
def test_bad_data(folder: Path, rows: str, expected: list[str]) -> None:
    (folder / "data.jsonl").write_text(rows)
    message = fails(folder, JSONL)
    for part in expected:
        assert part in message, message


@pytest.mark.parametrize(
    ("prompt", "row", "expected"),
    [
        ("{question", b'{"question": "a"}', ["tasks.prompt", "expected '}'", "written {{ and }}"]),
        ("{} {question}", b'{"question": "a"}', ["tasks.prompt", "{} without a name"]),
        ('Write {"a": 1}: {question}', b'{"question": "a"}', ["data.jsonl:1", "no field '\"a\"'", "written {{ and }}"]),
        ("{question:d}", b'{"question": "a"}', ["data.jsonl:1", "does not fit the prompt", "format code 'd'"]),
        ("{question}", '{"question": "ä"}'.encode("latin-1"), ["data.jsonl:1", "not UTF-8", "tasks.source"]),
        ("{question}", b"PAR1\x15\xff", ["data.jsonl:1", "not UTF-8", "tasks.source"]),
    ],
)
def test_rows_that_do_not_become_a_prompt(folder: Path, prompt: str, row: bytes, expected: list[str]) -> None:
    (folder / "data.jsonl").write_bytes(row)
    message = fails(folder, GOOD.replace("tasks: ./task.py:tasks", f"tasks: {{jsonl: data.jsonl, prompt: '{prompt}'}}"))
    for part in expected:
        assert part in message, message


def test_a_byte_order_mark_is_no_data(folder: Path) -> None:
    (folder / "data.jsonl").write_bytes(b'\xef\xbb\xbf{"key": 7, "question": "why?"}\n')
    (folder / "recipe.yaml").write_text(JSONL)
    recipe = load_recipe(str(folder))
    assert load_tasks(recipe.tasks, recipe.base, 0).at(0).id == "7"


def test_missing_data(folder: Path) -> None:
    assert "there is no file" in fails(folder, JSONL)


def test_a_jsonl_row_becomes_a_task(folder: Path) -> None:
    (folder / "data.jsonl").write_text('{"key": 7, "question": "why?", "answer": "so"}\n')
    (folder / "recipe.yaml").write_text(JSONL)
    recipe = load_recipe(str(folder))
    task = load_tasks(recipe.tasks, recipe.base, 0).at(3)
    assert (task.id, task.instruction[0]["content"], task.data["answer"]) == ("7", "Q: why?", "so")
