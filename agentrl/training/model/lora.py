"""LoRA (Hu et al., 2021, arXiv:2106.09685) with peft: low-rank adapters are trained, the model is frozen.

Adapters are injected into the model in place, so that all code that uses the model still works. vLLM servers receive
only the adapters, in peft's format. Checkpoints, and engines without adapters, receive merged weights under the
model's own names: W + (alpha / rank) B A.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.config.train import LoraSettings
from agentrl.models.vision.families import family_of
from agentrl.types.errors import TrainError, needs

ADAPTER = "default"
_BASE, _DOWN, _UP = ".base_layer.", f".lora_A.{ADAPTER}.", f".lora_B.{ADAPTER}."


def add_adapters(model: Any, settings: LoraSettings) -> None:
    """Injects adapters into linear layers except the vision tower, in place, and freezes all other parameters.

    A is random, B starts at 0: the initial adapters change nothing.

    Raises:
        MissingExtra: peft is not installed.
        TrainError: a target is not a linear layer of the model, or targets are not set and the model has experts.
    """
    with needs("lora"):
        from peft import inject_adapter_in_model
    family = family_of(model.config)
    eyes = {id(each) for part in (family.eyes(model) if family else ()) for each in part.modules()}
    text = {name: module for name, module in model.named_modules() if id(module) not in eyes}
    linear = {_short(name) for name, module in text.items() if isinstance(module, nn.Linear)}
    head = model.get_output_embeddings()
    body = {_short(name) for name, each in text.items() if type(each) is nn.Linear and each is not head}
    if settings.targets is None and any(".experts." in name for name, _ in model.named_parameters()):
        raise TrainError(
            "the model's experts are not linear layers: adapters on all layers would leave them out",
            place="train.lora.targets",
            remedy=f"name the layers that get adapters ({', '.join(sorted(body))}), or train without lora",
        )
    targets = set(settings.targets or body)
    if unknown := sorted(targets - linear):
        raise TrainError(
            f"the model has no linear layer {unknown[0]!r}",
            place="train.lora.targets",
            remedy=f"it has: {', '.join(sorted(linear))}",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Names are given in full: the tower may have layers of the same short names.
        inside = {name for name, each in text.items() if isinstance(each, nn.Linear) and _short(name) in targets}
        inject_adapter_in_model(_config(settings, inside), model, adapter_name=ADAPTER)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    model.eval()


def merged(weights: Mapping[str, Tensor], settings: LoraSettings) -> dict[str, Tensor]:
    """Merges the adapters of a state dict into its weights. The names are those of the model without adapters.

    Tied weights stay tied (the same tensor) unless an adapter changes them.
    """
    out, scale = without_adapters(weights), settings.alpha / settings.rank
    for name, tensor in weights.items():
        down, up = (weights.get(name.replace(_BASE, part)) for part in (_DOWN, _UP)) if _BASE in name else (None, None)
        if down is not None and up is not None:
            # Float32 adapters are added to weights of any type, and rounded once.
            added = scale * (up.float() @ down.float())
            out[name.replace(_BASE, ".")] = (tensor.float() + added).to(tensor.dtype)
    return out


def without_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of the model below the adapters, under its own names."""
    return {name.replace(_BASE, "."): tensor for name, tensor in weights.items() if ".lora_" not in name}


def save_adapters(folder: Path, weights: Mapping[str, Tensor], settings: LoraSettings) -> None:
    """Writes the adapters of a state dict in peft's format: `PeftModel.from_pretrained(model, folder)` loads them."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    own = {name: tensor for name, tensor in weights.items() if ".lora_" in name}
    targets = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in own}
    plain = {f"base_model.model.{name.replace(f'.{ADAPTER}', '')}": t.contiguous() for name, t in own.items()}
    save_file(plain, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    _config(settings, targets, task="CAUSAL_LM").save_pretrained(str(folder))


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _config(settings: LoraSettings, targets: set[str], task: str | None = None) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,  # dropout would give the recomputed log-probabilities of another policy
        target_modules=sorted(targets),
        bias="none",
        task_type=task,
    )
