"""The section `model` of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from agentrl.config.sections import MAY_CHANGE, NAMES_FILE, Section

_PACKAGE = "package:"


REVISION = "Of a name of the Hugging Face Hub: a branch, a tag or a commit; default: main. A run records the commit."


def package_of(path: str) -> str | None:
    """Returns the name of the Python package that a `model.path` names (`package:NAME`); None: it names none."""
    return path.removeprefix(_PACKAGE) if path.startswith(_PACKAGE) else None


class ScratchVision(Section):
    """The vision tower of a scratch model (Qwen2-VL's). A token is `patch * merge` pixels each way."""

    patch: int = Field(14, ge=2, description="Pixels of a patch, each way.")
    merge: int = Field(1, ge=1, description="Patches of a token, each way.")
    hidden: int = Field(64, ge=8, description="Width of the tower.")
    layers: int = Field(1, ge=1)
    heads: int = Field(2, ge=1)
    max_tokens: int = Field(64, ge=1, description="Tokens of an image, at most: larger images are made smaller.")

    @model_validator(mode="after")
    def _divides(self) -> ScratchVision:
        if self.hidden % (4 * self.heads):
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of 4 * heads ({4 * self.heads})")
        return self


class ScratchModel(Section):
    """A small Llama (Qwen2-VL, if it sees) with random weights, and a tokenizer trained on the demonstrations."""

    hidden: int = Field(64, ge=8, description="Width of the residual stream.")
    layers: int = Field(2, ge=1)
    heads: int = Field(2, ge=1)
    kv_heads: int | None = Field(None, ge=1, description="Fewer than heads: grouped-query attention. Default: heads.")
    vocab_size: int = Field(600, ge=259, description="Maximum size of the vocabulary; the texts may yield fewer.")
    max_context: int = Field(
        1024, ge=16, description="Maximum tokens of an episode: prompt, completions and observations together."
    )
    init_range: float = Field(
        0.06, gt=0, description="Standard deviation of the initial weights. With 0.02 copying is learned far slower."
    )
    rope_theta: float = Field(
        10000.0,
        gt=1,
        description="Base of the rotary frequencies. A small one tells near positions apart, as those of patches.",
    )
    vision: ScratchVision | None = Field(None, description="A vision tower: the model sees. null: it takes text only.")

    @model_validator(mode="after")
    def _divides(self) -> ScratchModel:
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of 2 * heads ({2 * self.heads})")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self


class ModelSettings(Section):
    """The policy: exactly one of `path` and `scratch`."""

    named_by: ClassVar[tuple[str, ...]] = ("path", "scratch")

    path: Annotated[str | None, NAMES_FILE] = Field(
        None,
        description="A Hugging Face model folder, a .gguf file (or its folder), package:NAME, or a name of the Hugging "
        "Face Hub (OWNER/NAME), which is downloaded when it is first loaded.",
    )
    revision: str | None = Field(None, description=REVISION)
    scratch: ScratchModel | None = Field(None, description="Build a small model from scratch.")
    template: Annotated[str | None, NAMES_FILE] = Field(
        None,
        description="Chat template: a file, or the name of a shipped one (docs/templates.md); default: the model's.",
    )
    template_args: dict[str, Any] = Field(
        {}, description="Arguments of the chat template besides messages and tools, e.g. {enable_thinking: false}."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Data type of the engine's weights. The trainer keeps its weights in float32."
    )
    device: Annotated[Literal["auto", "cpu", "cuda"], MAY_CHANGE] = Field(
        "auto", description="Device of the trainer and the torch engine; auto: a GPU if there is one."
    )

    @model_validator(mode="after")
    def _templates_are_for_models_with_another(self) -> ModelSettings:
        if self.scratch is not None and (self.template is not None or self.template_args):
            raise ValueError("a scratch model uses the template chatml: 'template' and 'template_args' need 'path'")
        return self

    @model_validator(mode="after")
    def _one_source(self) -> ModelSettings:
        if (self.path is None) == (self.scratch is None):
            raise ValueError(
                "give exactly one of 'path' and 'scratch'; --set 'model={path: FOLDER}' replaces the whole section"
            )
        if self.scratch is not None and self.revision is not None:
            raise ValueError("a scratch model has no 'revision': it is of a name of the Hugging Face Hub")
        return self

    def for_training(self) -> ModelSettings:
        """The same settings with float32 weights: small updates would be lost in bfloat16."""
        return self.model_copy(update={"dtype": "float32"})

    def at(self, folder: Path) -> ModelSettings:
        """The same settings with the weights of a folder, for example a checkpoint, which contains its template."""
        return ModelSettings(path=str(folder), scratch=None, dtype=self.dtype, device=self.device)
