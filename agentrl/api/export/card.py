"""The model card of an exported checkpoint: where it comes from, what was measured, how it is made again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.api.certify.certificate import told
from agentrl.api.export.base_model import BaseModel
from agentrl.config.recipe import Recipe, recipe_from_run
from agentrl.store.checkpoints import about, best
from agentrl.store.reader import RunReader
from agentrl.training.stages.stage import is_of, stage_of, stages_of
from agentrl.types.distribution import pip_install
from agentrl.types.http.hub import page_of
from agentrl.types.memory import FILE as MEMORY
from agentrl.types.reporter import UNNAMED

_METRICS = ("episodes", "reward", "success", "turns", "truncated", "sampled_tokens", "loss")
_PREFIXES = ("rewards/", "pass@", "pass^", "success/")


def model_card(run: RunReader, checkpoint: Path, base: BaseModel, *, adapter: bool, to: str) -> str:
    """Returns the card as Markdown, with the metadata that the Hub reads."""
    info, said, shared = run.info, about(checkpoint), recipe_from_run(run.info)
    stage = next((each for each in stages_of(shared) if is_of(each, said)), None)
    recipe, sees = shared if stage is None else stage.recipe, _sees(checkpoint)
    memory = "`memory.json` is its text memory, which every episode reads.\n"
    parts = [
        _metadata(base, sees=sees, adapter=adapter),
        f"# {recipe.name}\n",
        f"A policy that [agentrl](https://pypi.org/project/agentrl-framework/) trained{_what(recipe)}.\n",
        *([memory] if (checkpoint / MEMORY).is_file() else []),
        "## Training\n",
        _table(("", ""), _facts(run, recipe, checkpoint, said, base)),
        "## Metrics\n",
        _metrics(run, said),
        "## Use\n",
        _use(to, sees=sees, adapter=adapter),
        "## Make it again\n",
        _again(info, checkpoint, to, adapter=adapter, lora=said["lora"] is not None),
    ]
    return "\n".join(parts)


def _metadata(base: BaseModel, *, sees: bool, adapter: bool) -> str:
    about: dict[str, Any] = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "image-text-to-text" if sees else "text-generation",
        "tags": ["agentrl", "reinforcement-learning", "agent"],
    }
    if base.of_hub:
        about |= {"base_model": base.name, "base_model_relation": "adapter" if adapter else "finetune"}
    lines = [f"{key}: {json.dumps(value)}" for key, value in about.items()]  # JSON is YAML
    return "\n".join(["---", *lines, "---\n"])


def _sees(checkpoint: Path) -> bool:
    return (checkpoint / "preprocessor_config.json").is_file() or (checkpoint / "processor_config.json").is_file()


def _what(recipe: Recipe) -> str:
    return "" if recipe.about.trains is None else f": {recipe.about.trains}"


def _facts(
    run: RunReader, recipe: Recipe, checkpoint: Path, said: Mapping[str, Any], base: BaseModel
) -> Iterator[tuple[str, str]]:
    yield "recipe", f"`{recipe.name}`"
    yield "base model", _of(base)
    named = "" if stage_of(said) == UNNAMED else f" of the stage `{stage_of(said)}`"
    found = best(run.path / "checkpoints")
    by = (
        recipe.train.keep.best
        if recipe.train is not None and found is not None and found.name == checkpoint.name
        else None
    )
    yield (
        "checkpoint",
        f"`{checkpoint.name}`, after step {said['iteration']}{named}" + (f", the best by `{by}`" if by else ""),
    )
    settings = ", ".join(f"{key}: {json.dumps(value)}" for key, value in recipe.credit.settings.items())
    yield "credit estimator", f"`{recipe.credit.use}`" + (f" ({settings})" if settings else "")
    if said["lora"] is not None:
        yield "adapters", f"LoRA of rank {said['lora']['rank']}, alpha {said['lora']['alpha']:g}"
    yield "certificate of the environment", told(recipe) or "none"
    yield "seed", str(recipe.seed)
    yield "versions", ", ".join(f"{name} {version}" for name, version in run.info["versions"].items())
    if (commit := run.info.get("git", {}).get("commit")) is not None:
        yield "commit of the working folder", commit + (", with changes" if run.info["git"]["dirty"] else "")


def _of(base: BaseModel) -> str:
    if base.name is None:
        return "built from scratch"
    if not base.of_hub:
        return f"`{base.name}`, on the machine of the training"
    return f"[{base.name}]({page_of(base.name)})" + (f" at `{base.revision}`" if base.revision is not None else "")


def _metrics(run: RunReader, said: Mapping[str, Any]) -> str:
    """The last lines of training and evaluation up to the checkpoint."""
    stage, last = stage_of(said), said["iteration"]
    own = [line for line in run.metrics() if line.get("stage", UNNAMED) == stage and line["iteration"] <= last]
    lines = {
        split: next((line for line in reversed(own) if line["split"] == split), None) for split in ("train", "eval")
    }
    known = {split: line for split, line in lines.items() if line is not None}
    if not known:
        return "The run has no line of metrics up to this checkpoint.\n"
    heads = {"train": "training, iteration {}", "eval": "evaluation after iteration {}"}
    names = [name for line in known.values() for name in line if name in _METRICS or name.startswith(_PREFIXES)]
    rows = [(f"`{name}`", *(_number(line.get(name)) for line in known.values())) for name in dict.fromkeys(names)]
    return _table(("", *(heads[split].format(line["iteration"]) for split, line in known.items())), rows)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def _table(head: Sequence[str], rows: Any) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells) + "\n"


def _use(to: str, *, sees: bool, adapter: bool) -> str:
    name = to.removeprefix("hf:")
    reader = "AutoProcessor" if sees else "AutoTokenizer"
    if adapter:
        kind, imports = "AutoPeftModel" if sees else "AutoPeftModelForCausalLM", [f"from transformers import {reader}"]
        imports.insert(0, f"from peft import {kind}")
    else:
        kind = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
        imports = [f"from transformers import {kind}, {reader}"]
    loads = [f"{reader.removeprefix('Auto').lower()} = {reader}.from_pretrained({name!r})"]
    loads += [f"model = {kind}.from_pretrained({name!r})"]
    return "\n".join(["```python", *imports, "", *loads, "```\n"])


def _again(info: Mapping[str, Any], checkpoint: Path, to: str, *, adapter: bool, lora: bool) -> str:
    export = ["agentrl", "export", str(checkpoint.parent.parent), "--to", to, "--checkpoint", checkpoint.name]
    export += ["--adapter"] if adapter else []
    program, *arguments = info["argv"]
    if Path(program).name not in ("agentrl", "cli.py"):
        begun = f"# from Python: agentrl.train({info['recipe']['name']!r}, ...); run.json holds the whole recipe"
    else:
        begun = shlex.join(["agentrl", *arguments])
    version = pip_install("train", *(["lora"] if lora else [])).removesuffix("'") + f"=={info['versions']['agentrl']}'"
    return "\n".join(["```bash", version, begun, shlex.join(export), "```\n"])
