"""The section `engine` of a recipe: the inference engine that samples from the policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from agentrl.config.sections import MAY_CHANGE, PlugIn, WithPlugIn
from agentrl.registry.references import is_reference
from agentrl.types.errors import nearest

KEYS: dict[str, frozenset[str]] = {
    "torch": frozenset({"max_batch", "parked_mb", "threads", "batch_invariant"}),
    "vllm": frozenset(
        {"urls", "replicas", "tensor_parallel", "python", "args", "transfer", "weights_dir", "merge_lora", "seeded"}
        | {"batch_invariant", "gpus", "memory_share", "max_context", "colocate"}
    )
    | {"timeout_s", "retries"},
    "openai": frozenset({"urls", "model", "api_key_env", "native_tools", "input_price", "output_price"})
    | {"timeout_s", "retries"},
}
"""The settings of each engine."""


class TransferSettings(PlugIn):
    """The `engine.transfer` key: a name, or `{use: NAME, ...}` with the transfer's own settings."""

    use: str = Field(
        "file",
        description="file: through a file that both sides see; nccl: between GPUs; or ./file.py:Transfer.",
    )


class EngineSettings(WithPlugIn):
    """The engine, and where it runs. Settings of an engine other than `use` are errors. A user-defined engine gets all
    keys that are given."""

    use: str = Field(
        "torch",
        description="torch: in this process; vllm: vLLM servers; openai: an API (not trainable); or "
        "./file.py:Engine, with its settings beside `use`.",
    )
    urls: Annotated[list[str], MAY_CHANGE] = Field(
        [], description="vllm: URLs of running servers (empty: start servers). openai: the base URL, ending in /v1."
    )
    timeout_s: Annotated[float, MAY_CHANGE] = Field(600.0, gt=0, description="vllm, openai: seconds per request.")
    retries: Annotated[int, MAY_CHANGE] = Field(
        4, ge=0, description="vllm, openai: retries after a failure that may be temporary."
    )

    max_batch: Annotated[int, MAY_CHANGE] = Field(
        64, gt=0, description="torch: maximum number of requests that are decoded together."
    )
    parked_mb: Annotated[int, MAY_CHANGE] = Field(
        1024, ge=0, description="torch: MiB of KV cache for sessions between two turns."
    )
    threads: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="torch: threads for tensor operations.")

    batch_invariant: bool = Field(
        False,
        description="torch (on a CPU), vllm (0.32, on GPUs): log-probabilities are bit-identical whatever else is in "
        "the batch. Slower (docs/engines.md).",
    )

    replicas: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="vllm: number of servers to start.")
    tensor_parallel: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="vllm: GPUs per server.")
    gpus: Annotated[list[Annotated[int, Field(ge=0)]] | None, MAY_CHANGE] = Field(
        None,
        min_length=1,
        description="vllm: GPUs of the started servers, server after server, as indices among the GPUs that this "
        "process sees; default: the last ones, so that the first ones are left for the trainer.",
    )
    memory_share: Annotated[float | None, MAY_CHANGE] = Field(
        None, gt=0, le=1, description="vllm: share of a GPU's memory for a server; default: vLLM's own (0.92)."
    )
    max_context: int | None = Field(
        None,
        gt=1,
        description="vllm: maximum number of tokens of an episode, for started servers; default: the maximum that the "
        "recipe can need, limited by the model's context.",
    )
    colocate: Annotated[Literal["sleep"] | None, MAY_CHANGE] = Field(
        None,
        description="vllm: servers and trainer share GPUs and take turns. sleep: while the trainer computes, the "
        "servers' weights are kept in host memory.",
    )
    python: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="vllm: the interpreter that has vLLM; default: this one, or $AGENTRL_VLLM_PYTHON."
    )
    args: Annotated[list[str], MAY_CHANGE] = Field([], description="vllm: additional arguments of the servers.")
    transfer: Annotated[TransferSettings, MAY_CHANGE] = Field(
        default_factory=TransferSettings, description="vllm: how new weights are sent to the servers."
    )
    weights_dir: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="vllm: folder for weight files and adapters; default: shared memory of this machine."
    )
    merge_lora: bool = Field(
        False,
        description="vllm: with train.lora, send the full weights with the adapters merged in (in model.dtype) instead "
        "of the adapters alone.",
    )

    seeded: bool = Field(
        False, description="vllm: send a seed with every completion. Slower; not for CPU servers (docs/engines.md)."
    )

    model: str | None = Field(None, description="openai: name of the model.")
    api_key_env: Annotated[str, MAY_CHANGE] = Field(
        "OPENAI_API_KEY", description="openai: environment variable that holds the API key."
    )
    native_tools: bool = Field(
        True, description="openai: send tools as the API defines them; false: describe them in the prompt."
    )
    input_price: float = Field(0.0, ge=0, description="openai: price per million prompt tokens.")
    output_price: float = Field(0.0, ge=0, description="openai: price per million completion tokens.")

    @property
    def own_keys(self) -> list[str]:
        """None for a user-defined engine: every key is a setting of its constructor."""
        return [] if is_reference(self.use) else super().own_keys

    @model_validator(mode="wrap")
    @classmethod
    def _as_given(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """The settings of a user-defined engine are not converted, even if a built-in engine has a key of that name."""
        given = cls.spelled_out(value)
        if not (isinstance(given, dict) and isinstance(given.get("use"), str) and is_reference(given["use"])):
            return handler(value)
        shared = {key: value for key, value in given.items() if key in cls.model_fields and key != "use"}
        found = handler({key: value for key, value in given.items() if key not in shared})
        assert found.model_extra is not None
        found.model_extra.update(shared)
        return found

    @model_serializer(mode="wrap")
    def _without_others(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A user-defined engine is serialised without the defaults of the built-in ones."""
        found: dict[str, Any] = {"use": self.use, **self.settings} if is_reference(self.use) else whole(self)
        return found

    @model_validator(mode="after")
    def _belong_together(self) -> EngineSettings:
        if is_reference(self.use):
            return self
        if self.use not in KEYS:
            remedy = nearest(self.use, KEYS, "name your own as ./file.py:Name, or take one of")
            raise ValueError(f"there is no engine {self.use!r}; {remedy}")
        everyones = set.union(*map(set, KEYS.values()))
        for name in sorted(everyones - KEYS[self.use]):
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                owners = [use for use, keys in KEYS.items() if name in keys]
                raise ValueError(f"{name!r} belongs to {' and '.join(owners)}, and engine.use is {self.use!r}")
        if self.gpus is not None and len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"'gpus' contains an index twice: {self.gpus}")
        if self.colocate is not None and self.memory_share is None:
            raise ValueError("'colocate' needs 'memory_share': the share of GPU memory for servers that are awake")
        if self.use == "openai" and not (len(self.urls) == 1 and self.model):
            raise ValueError(
                "an API needs exactly one url and a model: {use: openai, urls: [https://.../v1], model: NAME}"
            )
        if bad := [url for url in self.urls if not url.startswith(("http://", "https://"))]:
            raise ValueError(f"{bad[0]!r} is not a URL: write http://HOST:PORT")
        return self
