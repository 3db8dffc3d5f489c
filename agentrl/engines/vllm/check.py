"""Compatibility check of a vLLM server with the recipe, before the first episode."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from agentrl.chat.tokenizer import Tokenizer
from agentrl.engines.http import HttpClient, Refused, back_off
from agentrl.engines.vllm.replies import CompletionsResponse
from agentrl.types.errors import EngineError

PROBE = 'Déjà vu:  naïve\n\ttest 12345 {"a": [1, 2]} 日本 🙂 </end>'


@dataclass(frozen=True)
class ServerFacts:
    """Properties of a server.

    Attributes:
        native: whether it has the native token endpoint.
        world_size: number of its workers; 1 if it does not report it.
    """

    model: str
    max_context: int
    native: bool
    world_size: int


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class _WorldSize(msgspec.Struct):
    world_size: int


class _Sight(msgspec.Struct):
    mm_device_do_normalize: bool | None = None


class _ModelConfig(msgspec.Struct):
    multimodal_config: _Sight | None = None


class _Config(msgspec.Struct):
    model_config: _ModelConfig


class _ServerInfo(msgspec.Struct):
    vllm_config: _Config


async def check_server(
    url: str, client: HttpClient, tokenizer: Tokenizer, *, retries: int, sees: bool = False
) -> ServerFacts:
    """Reads a server's properties, and compares its tokenizer and log-probabilities with what the recipe needs.

    Args:
        sees: the server will receive images.

    Raises:
        EngineError: it is unreachable, not a vLLM server, or incompatible; the message names the difference.
    """
    models = await _reach(url, client, retries)
    model = models.data[0]
    if model.max_model_len is None:
        raise EngineError(
            "not a vLLM server: it does not report max_model_len", place=url, remedy="engine: {use: openai}"
        )
    await _compare_tokenizers(url, client, model.id, tokenizer)
    await _check_logprobs(url, client, model.id, tokenizer)
    if sees:
        await _check_sight(url, client)
    return ServerFacts(
        model.id, model.max_model_len, await _has_native(url, client, model.id), await _world(url, client)
    )


async def _reach(url: str, client: HttpClient, retries: int) -> _Models:
    for attempt in range(retries + 1):
        try:
            return await client.get(f"{url}/v1/models", _Models)
        except EngineError as error:
            if attempt == retries:
                raise EngineError(
                    error.message, place=f"engine.urls: {url}", remedy="start it: agentrl serve RECIPE"
                ) from error
            await back_off(attempt)
    raise AssertionError("unreachable")


async def _compare_tokenizers(url: str, client: HttpClient, model: str, tokenizer: Tokenizer) -> None:
    """Compares both directions: a text with every control token to ids, and ids spread over the vocabulary to text."""
    remedy = "engine.urls and model.path must name the same model"
    text = PROBE + "".join(tokenizer.controls)
    ours = tokenizer.encode(text, special=True)
    try:
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        theirs = (await client.post(f"{url}/tokenize", body, _Tokens)).tokens
        if ours != theirs:
            at = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            raise EngineError(
                f"the server's tokenizer differs from the recipe's ({tokenizer.name}): token {at} of a test text is "
                f"{theirs[at : at + 1]} there and {ours[at : at + 1]} here",
                place=url,
                remedy=remedy,
            )
        for token in range(0, tokenizer.vocab_size, max(1, tokenizer.vocab_size // 16)):
            said = (await client.post(f"{url}/detokenize", {"model": model, "tokens": [token]}, _Text)).prompt
            if said != tokenizer.decode([token]):
                raise EngineError(
                    f"the server's vocabulary differs from the recipe's ({tokenizer.name}): token {token} is {said!r} "
                    f"there and {tokenizer.decode([token])!r} here",
                    place=url,
                    remedy=remedy,
                )
    except Refused as refused:
        raise EngineError(f"the tokenizers cannot be compared: {refused.message}", place=url, remedy=remedy) from None


async def _check_logprobs(url: str, client: HttpClient, model: str, tokenizer: Tokenizer) -> None:
    """Checks that the model has the largest token id, and that log-probabilities include the sampling settings.

    With `top_k=1` the sampled token has probability 1 under the sampling settings, and less without them.
    """
    body = {
        "model": model,
        "prompt": [tokenizer.vocab_size - 1],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_k": 1,
        "logprobs": 0,
        "return_token_ids": True,
    }
    try:
        choice = (await client.post(f"{url}/v1/completions", body, CompletionsResponse)).choices[0]
    except Refused as refused:
        raise EngineError(
            f"the model does not know all tokens of the recipe's tokenizer ({tokenizer.vocab_size}): {refused.message}",
            place=url,
            remedy="engine.urls and model.path must name the same model",
        ) from None
    logprobs = choice.logprobs.token_logprobs if choice.logprobs else []
    if choice.token_ids is None or len(logprobs) != 1 or logprobs[0] is None:
        raise EngineError("the server returns no token ids", place=url, remedy="vLLM 0.32 or newer is required")
    if abs(logprobs[0]) > 1e-3:
        raise EngineError(
            "the server's log-probabilities ignore temperature and top_p: training on them would be biased",
            place=url,
            remedy="start it with --logprobs-mode processed_logprobs, as agentrl serve does",
        )


async def _check_sight(url: str, client: HttpClient) -> None:
    """Checks that the server's model takes images, and that its vision tower takes the trainer's pixels.

    With `mm_device_do_normalize`, vLLM's default, the tower normalises the pixels itself: pixels that are already
    normalised give other log-probabilities, without an error.
    """
    try:
        said = await client.get(f"{url}/server_info?config_format=json", _ServerInfo)
    except Refused as refused:
        raise EngineError(
            f"the server does not say how it takes images: {refused.message}",
            place=url,
            remedy="start it with VLLM_SERVER_DEV_MODE=1, as agentrl serve does",
        ) from None
    sight = said.vllm_config.model_config.multimodal_config
    if sight is None:
        raise EngineError(
            "the server's model takes text only, and the recipe's sees",
            place=url,
            remedy="engine.urls and model.path must name the same model",
        )
    if sight.mm_device_do_normalize:
        raise EngineError(
            "the server normalises pixels that are normalised already: the model would see other images",
            place=url,
            remedy="start it with --no-mm-device-do-normalize, as agentrl serve does",
        )


async def _has_native(url: str, client: HttpClient, model: str) -> bool:
    body = {"model": model, "token_ids": [0], "sampling_params": {"max_tokens": 1}}
    try:
        await client.post(f"{url}/inference/v1/generate", body, type(None))
    except Refused:
        return False
    return True


async def _world(url: str, client: HttpClient) -> int:
    try:
        return (await client.get(f"{url}/get_world_size", _WorldSize)).world_size
    except Refused:
        return 1
