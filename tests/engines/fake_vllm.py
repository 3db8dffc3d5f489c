"""A server that keeps track of weights and adapters as vLLM 0.32 does, and records what it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from agentrl.chat.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
CONTROL = ("/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache")
CONTROL += ("/reset_encoder_cache", "/resume", "/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")


class FakeVLLM:
    """An `Answer` of `serving`.

    Attributes:
        asked: path and body of every request.
        version: of the weights.
        adapters: by name, their folders.
        lora, clears, sleeps: whether it takes adapters, clears its cache, and sleeps.
        open: completions wait until it is set.
        aborts: how many of the next completions it aborts, as a server does that ends.
    """

    def __init__(self, *, lora: bool = True) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.lora, self.clears, self.sleeps = lora, True, True
        self.aborts = 0
        self.open = asyncio.Event()
        self.open.set()
        self.restart()

    def restart(self) -> None:
        """It begins anew with its model's own weights."""
        self.version, self.adapters = "default", dict[str, str]()

    @property
    def controlled(self) -> list[str]:
        """The requests that change what it samples from, in order."""
        return [path for path, _ in self.asked if path in CONTROL]

    async def __call__(self, path: str, body: Any) -> Any:
        self.asked.append((path, body))
        match path:
            case "/v1/models":
                return {"data": [{"id": "m", "max_model_len": 1000}]}
            case "/tokenize":
                return {"tokens": BYTES.encode(body["prompt"], special=True)}
            case "/detokenize":
                return {"prompt": BYTES.decode(body["tokens"])}
            case "/v1/completions" | "/inference/v1/generate":
                return await self._complete(path, body)
            case "/get_world_size":
                return {"world_size": 1}
            case "/weight_info":
                return {"weight_version": self.version}
            case "/finish_weight_update":
                self.version = body["weight_version"]
            case "/sleep" if not self.sleeps:
                return web.Response(status=500, text="sleep mode is off")
            case "/reset_prefix_cache":
                return {"success": self.clears}
            case "/v1/load_lora_adapter":
                return self._load(body)
            case "/v1/unload_lora_adapter":
                return web.Response(status=200 if self.adapters.pop(body["lora_name"], None) else 404)
        return {}

    async def _complete(self, path: str, body: Any) -> Any:
        if body["model"] not in ("m", *self.adapters):
            return web.Response(status=404, text="no such model")
        await self.open.wait()
        assert body["model"] == "m" or Path(self.adapters[body["model"]]).is_dir(), "it may read the adapter again"
        if path == "/v1/completions":
            prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
            found = {f"token_id:{token}": -1.0 for token in body.get("logprob_token_ids", [])}
            choice = {"token_ids": [0], "logprobs": {"token_logprobs": [0.0], "top_logprobs": [found]}}
            whole = {**choice, "finish_reason": "length"}
            if self.aborts:
                self.aborts -= 1
                whole = {"token_ids": [], "logprobs": None, "finish_reason": "abort"}
            return {"choices": [{"index": k, **whole} for k in range(len(prompts))]}
        span = {"version": self.version, "start": 0, "end": 1}
        token = {"token_id": 0, "logprob": -0.5}
        choice = {"token_ids": [0], "logprobs": {"content": [token]}, "finish_reason": "length"}
        return {"choices": [{**choice, "weight_versions": [span]}]}

    def _load(self, body: Any) -> web.Response:
        if not self.lora:
            return web.Response(status=404, text="Not Found")
        if not Path(body["lora_path"], "adapter_config.json").is_file():
            return web.Response(status=404, text="No adapter found")
        if body["lora_name"] in self.adapters:
            return web.Response(status=400, text=f"The lora adapter '{body['lora_name']}' has already been loaded.")
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success: LoRA adapter added successfully.")
