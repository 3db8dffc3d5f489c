"""The policy: a model from a folder, from a GGUF file, or built from scratch.

Importable without torch and transformers; loading needs the extra `train` (and `gguf` for GGUF files).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentrl.chat.template import template_text, with_arguments
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.model import ModelSettings, package_of
from agentrl.models.hub import WEIGHTS, download, in_cache, is_hub_name
from agentrl.models.scratch import build
from agentrl.models.vision.families import FAMILIES, family_of
from agentrl.models.vision.processor import ImageProcessor, load_processor
from agentrl.types.errors import MissingExtra, RecipeError, require_versions
from agentrl.types.paths import neighbours

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")

ONE_LOADS = threading.RLock()
"""Held by the thread that makes a model with transformers, which meanwhile replaces methods of all models
(`tie_weights`) and torch's default type, in the whole process. Of two at once the second would restore what the first
had put there, and every later model would be broken."""

CONVERSION = 1
"""Raised when `_convert` writes something else than before: older conversions in the cache are then passed over."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer.

    Attributes:
        model: in evaluation mode, on the device of the settings, with SDPA attention where that computes all that the
            model's own does. None of a trainer that keeps its weights elsewhere (`agentrl/training/backend.py`).
        tokenizer: has a chat template.
        max_context: tokens that the model's positions allow.
        processor: of a model that sees.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    max_context: int
    processor: ImageProcessor | None = None

    def chat(self) -> HFTokenizer:
        """The tokenizer as the renderer takes it."""
        return HFTokenizer(self.tokenizer, self.processor)

    def save_described(self, folder: str) -> None:
        """Writes all of the model but its weights: tokenizer and processor."""
        self.tokenizer.save_pretrained(folder)
        if self.processor is not None:
            self.processor.save_pretrained(folder)


def load_model(settings: ModelSettings, *, texts: Iterable[str] | None = None, seed: int) -> LoadedModel:
    """Loads the model, or builds it.

    Args:
        texts: training texts for the tokenizer of a scratch model; not read for other models.
        seed: of a scratch model's weights.

    Raises:
        RecipeError: the model cannot be found or lacks a part.
        MissingExtra: torch, transformers or gguf is not installed.
    """
    _need("torch", "train")
    _need("transformers", "train")
    if settings.scratch is not None:
        with ONE_LOADS:
            loaded = LoadedModel(*build(settings.scratch, texts, seed))
        model = cast_weights(loaded.model, _dtype(settings)).to(_device(settings))
        return LoadedModel(model, loaded.tokenizer, loaded.max_context, loaded.processor)
    folder = model_folder(settings)
    if not any(True for pattern in WEIGHTS for _ in folder.glob(pattern)):
        raise _error(f"{folder} has no weights", f"it needs one of {', '.join(WEIGHTS)}")
    tokenizer = load_tokenizer(settings)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    with _explained(folder):
        config = AutoConfig.from_pretrained(folder)
    processor = load_processor(folder, config, tokenizer)
    kind = AutoModelForCausalLM if processor is None else AutoModelForImageTextToText
    with ONE_LOADS, no_progress_bars(), _explained(folder):
        model = kind.from_pretrained(folder, dtype=_dtype(settings), attn_implementation=attention_for(config))
    longest = int(model.config.get_text_config().max_position_embeddings)
    return LoadedModel(model.eval().to(_device(settings)), tokenizer, longest, processor)


def cast_weights(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in another type, changed in place, as transformers loads it in that type. Buffers that
    no checkpoint has stay as they are: rotary frequencies rounded to bfloat16 turn late tokens by wrong angles."""
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def attention_for(config: Any) -> Literal["sdpa", "eager"]:
    """transformers' attention for a model: SDPA, unless the model has none, or SDPA would drop its score caps (Gemma-2)
    without a word."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    sees = AutoModelForImageTextToText if family_of(config) else AutoModelForCausalLM
    kind = sees._model_mapping.get(type(config), None)
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
    return "sdpa" if getattr(kind, "_supports_sdpa", False) and not capped else "eager"


def load_tokenizer(settings: ModelSettings) -> PreTrainedTokenizerFast:
    """The tokenizer of a model that lies in a folder, without its weights.

    Raises:
        RecipeError: it cannot be found, has no chat template, or one that does not read an argument.
    """
    _need("transformers", "train")
    from transformers import AutoTokenizer

    folder = model_folder(settings)
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise _error(f"{folder} has no tokenizer", f"copy one of {', '.join(TOKENIZERS)} of the model to the folder")
    with _explained(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if settings.template is not None:
        tokenizer.chat_template = template_text(settings.template)
    if not tokenizer.chat_template:
        raise _error(
            f"the tokenizer in {folder} has no chat template",
            "use an instruction-tuned model, or name a template: model.template=chatml, or a file",
        )
    if settings.template_args:
        own = tokenizer.chat_template
        several = own if isinstance(own, dict) else {"": own}
        settled = {name: with_arguments(text, settings.template_args) for name, text in several.items()}
        tokenizer.chat_template = settled if isinstance(own, dict) else settled[""]
    return tokenizer


def chat_tokenizer(settings: ModelSettings) -> HFTokenizer:
    """The tokenizer of a model that lies in a folder as the renderer takes it, with its processor if it sees.

    Raises:
        RecipeError: as `load_tokenizer`, or the folder lacks the processor.
    """
    tokenizer, folder = load_tokenizer(settings), model_folder(settings)
    if not sees(settings):
        return HFTokenizer(tokenizer)
    from transformers import AutoConfig

    with _explained(folder):
        config = AutoConfig.from_pretrained(folder)
    return HFTokenizer(tokenizer, load_processor(folder, config, tokenizer))


def sees(settings: ModelSettings, families: Container[str] = FAMILIES, *, unknown: bool = True) -> bool:
    """Returns True if a model takes images, without loading it.

    Args:
        families: the model types to look for.
        unknown: the answer for a model that has to be downloaded.

    Raises:
        RecipeError: the model does not exist.
    """
    if settings.path is None:
        return settings.scratch is not None and settings.scratch.vision is not None
    place = find_model(settings.path, settings.revision)
    if place is None:
        return unknown
    if place.suffix == ".gguf":
        return False
    return json.loads((place / "config.json").read_bytes()).get("model_type") in families


def _there(place: Path) -> str:
    there = neighbours(place)
    return f"; {there}" if there else ""


def find_model(name: str, revision: str | None = None) -> Path | None:
    """Returns the path of a model on this machine: a folder with `config.json`, or a .gguf file. Downloads nothing.

    Every model that a recipe names is looked up here, or by `fetch_model`.

    Args:
        name: a folder, a .gguf file, a folder with exactly one .gguf file, `package:NAME`: an installed Python package
            that contains one (the package is not imported), or OWNER/NAME: a name of the Hugging Face Hub.
        revision: of a name of the Hub: a branch, a tag or a commit; None: the branch main.

    Returns:
        None for a name of the Hub whose model is not in the cache: `fetch_model` downloads it.

    Raises:
        RecipeError: the model does not exist.
    """
    package = package_of(name)
    place = Path(name).expanduser() if package is None else _package_folder(package)
    if package is None and not place.exists() and is_hub_name(name):
        return in_cache(name, revision)
    if revision is not None:
        raise _error(
            f"{name!r} is no name of the Hugging Face Hub, and has no revision {revision!r}",
            "leave 'revision' out, or name the model OWNER/NAME",
        )
    if place.suffix == ".gguf" and place.is_file():
        return place
    if not place.is_dir():
        raise _error(
            f"there is no folder {name!r}",
            "model.path takes a model folder (./NAME: in the folder of the recipe), a .gguf file, package:NAME, or "
            f"OWNER/NAME of the Hugging Face Hub{_there(place)}",
        )
    if (place / "config.json").is_file():
        return place
    ggufs = sorted(place.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise _error(f"{place} holds {len(ggufs)} .gguf files", f"name one of them: model.path={ggufs[0]}")
    raise _error(f"{place} holds no model: neither config.json nor a .gguf file", "point model.path at the model")


def fetch_model(name: str, revision: str | None = None) -> Path:
    """Returns the path of a model as `find_model`; a model of the Hugging Face Hub is downloaded once, to its cache.

    Raises:
        RecipeError: the model does not exist, or cannot be downloaded.
    """
    return find_model(name, revision) or download(name, revision)


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise _error(f"the package {name!r} is not installed", f"pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0])


def count_layers(settings: ModelSettings) -> int | None:
    """Returns the number of decoder layers of a model without loading it; None if its configuration lacks it, or
    the model has to be downloaded.

    Raises:
        RecipeError: the model does not exist.
    """
    if settings.path is None:
        return settings.scratch.layers if settings.scratch is not None else None
    place = find_model(settings.path, settings.revision)
    if place is None:
        return None
    if place.suffix != ".gguf":
        config = json.loads((place / "config.json").read_bytes())
        layers = config.get("text_config", config).get("num_hidden_layers")
        return None if layers is None else int(layers)
    return _count_gguf_layers(place) if importlib.util.find_spec("gguf") is not None else None


@functools.cache  # reading the header takes seconds
def _count_gguf_layers(gguf: Path) -> int:
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields
    return int(fields[f"{fields['general.architecture'].contents()}.block_count"].contents())


def model_folder(settings: ModelSettings) -> Path:
    """Returns the folder of the model of `path`. A GGUF file is converted once, and a model of the Hugging Face Hub
    downloaded once.

    Raises:
        RecipeError: the model does not exist, or cannot be downloaded.
    """
    if settings.path is None:
        raise _error("a scratch model lies in no folder until it was trained", "point model.path at a checkpoint")
    place = fetch_model(settings.path, settings.revision)
    return _converted(place) if place.suffix == ".gguf" else place


def _converted(gguf: Path) -> Path:
    """Converts a GGUF file to a model folder (float32 safetensors) in the cache, once.

    The cache is $AGENTRL_CACHE, by default ~/.cache/agentrl. The key contains the file's name, size and time, so that
    a replaced file is converted again.
    """
    _need("gguf", "gguf")
    _need("accelerate", "gguf")
    stat = gguf.stat()
    source = f"{CONVERSION}/{gguf.resolve()}/{stat.st_size}/{stat.st_mtime_ns}"
    key = hashlib.blake2b(source.encode(), digest_size=6).hexdigest()
    cache = Path(os.environ.get("AGENTRL_CACHE") or "~/.cache/agentrl").expanduser() / "models"
    folder = cache / f"{gguf.stem}-{key}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Written to a temporary folder and renamed: a killed conversion leaves no partial model; of two at once one wins.
    partial = Path(tempfile.mkdtemp(prefix=".converting-", dir=cache))
    try:
        _convert(gguf, partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    with ONE_LOADS, no_progress_bars(), _explained(gguf):
        tokenizer = AutoTokenizer.from_pretrained(**source)
        quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        # A model that was loaded quantised refuses to be saved, although its weights are dequantised by now.
        del quantised.config.quantization_config
        plain = AutoModelForCausalLM.from_config(quantised.config, dtype=torch.float32)
        plain.load_state_dict(quantised.state_dict())
        plain.save_pretrained(folder)
        # The tokenizer comes out with bos for eos; the model's configuration has them right.
        for name in ("bos", "eos", "pad", "unk"):
            if (token_id := getattr(plain.config, f"{name}_token_id")) is not None:
                setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))
        tokenizer.clean_up_tokenization_spaces = False
        tokenizer.save_pretrained(folder)


def _dtype(settings: ModelSettings) -> Any:
    import torch

    return getattr(torch, settings.dtype)


def _device(settings: ModelSettings) -> str:
    """Returns the torch device. Raises RecipeError if the settings require a missing GPU."""
    import torch

    found = torch.cuda.is_available()
    if settings.device == "cuda" and not found:
        raise RecipeError("there is no CUDA device", place="model.device", remedy="agentrl doctor says what it sees")
    return "cuda" if found and settings.device != "cpu" else "cpu"


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, extra)
    require_versions(extra)


def _error(message: str, remedy: str) -> RecipeError:
    return RecipeError(message, place="model", remedy=remedy)


@contextmanager
def _explained(place: Path) -> Iterator[None]:
    """Converts errors of the loading libraries about a damaged or unknown model into one error with its place."""
    try:
        yield
    except Exception as error:
        raise _error(
            f"{place} cannot be loaded: {type(error).__name__}: {error}",
            "the folder must hold what save_pretrained writes, for a model family that transformers knows",
        ) from error


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """transformers draws one for every file it reads or writes, across the display of the run."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def on_cuda(model: ModelSettings) -> bool:
    """Returns True if the model will be on GPUs. Creates no CUDA context, which would fix the visible devices."""
    import torch

    return model.device == "cuda" or (model.device == "auto" and torch.cuda.device_count() > 0)
