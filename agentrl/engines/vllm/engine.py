"""The vLLM engine: samples on servers, exact to the token and to the version of the weights.

With vLLM's native token endpoint (`--enable-scale-out`) a completion may span weight updates, and every token has its
version. Without it the engine uses token ids with `/v1/completions`, and an update waits until no request is in flight,
so a completion has one version.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgspec

from agentrl.chat.tokenizer import Tokenizer
from agentrl.engines.http import HttpClient, Refused, back_off
from agentrl.engines.opening import EngineOpening
from agentrl.engines.replicas import Replica, Replicas
from agentrl.engines.stops import StopStrings, cut
from agentrl.engines.vllm.check import ServerFacts, check_server
from agentrl.engines.vllm.control import UNTRAINED, ServerControl
from agentrl.engines.vllm.images import shown_images
from agentrl.engines.vllm.launch import ServerGroup
from agentrl.engines.vllm.recipes import RecipeServers, started
from agentrl.engines.vllm.replies import CompletionsResponse, NativeResponse, from_completions, from_native, joined
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.types.engine import Adapter, Completion, ContextOverflow, NoAdapters, Sampling
from agentrl.types.episode import VersionSpan
from agentrl.types.errors import AgentRLError, EngineError
from agentrl.types.parts.intake import TAKES_IMAGES, CannotSee, cannot_see
from agentrl.types.task import Message, Task

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

NATIVE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"

SCORED_AT_ONCE = 64
"""Tokens of a continuation that one request scores (vLLM takes at most 128 `logprob_token_ids`)."""

CONTINUATIONS = 16
"""Maximum number of requests per completion. A server may abort a request, for example at a pause."""


class _Policy(NamedTuple):
    """The model or adapter that samples.

    Attributes:
        model: its name on the servers.
        version: version of the adapter; None for the model itself: the servers report its version.
    """

    model: str
    version: int | None = None


class VLLMEngine(RecipeServers):
    """Samples on vLLM servers, given by URL or started by this process.

    Args:
        servers: servers that this process started; the engine waits for them and closes them.
        tokenizer: the recipe's tokenizer; the servers must have the same.
        room: maximum new tokens of one turn; the servers' context must be larger.
        base: folder of the recipe.
    """

    Settings = VLLMSettings
    name = "vllm"
    weights = "recipe"
    trainable = checkpoint_names = spreads_scores = rounds_apart = True

    def __init__(
        self,
        settings: VLLMSettings,
        urls: Sequence[str],
        *,
        tokenizer: Tokenizer,
        room: int = 1,
        servers: ServerGroup | None = None,
        base: Path | None = None,
    ) -> None:
        self.max_context = 0
        self.version = 0
        self._client = HttpClient(timeout_s=settings.timeout_s)
        self.replicas = Replicas(urls, self._client, retries=settings.retries)
        self._settings, self._tokenizer, self._room, self._servers = settings, tokenizer, room, servers
        self._images = shown_images(tokenizer)
        self.sees = self._images is not None
        self.takes_adapters = not settings.merge_lora and not self.sees  # untested with vision towers
        self.shares_gpu = settings.colocate is not None
        self._control = ServerControl(self.replicas, self._client, settings, base or Path())
        self._model, self._policy = "", _Policy("")
        self._under_way: Counter[str] = Counter()  # requests in flight by model or adapter
        self._chores: set[asyncio.Task[Any]] = set()
        self._native, self._updated, self._numbered = True, False, False
        self._starting, self._updating = asyncio.Lock(), asyncio.Lock()
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    @classmethod
    def open(cls, opening: EngineOpening) -> Self:
        """Attaches to the recipe's servers, or starts some.

        Raises:
            RecipeError: the recipe's model does not exist yet.
            EngineError: servers cannot be started.
        """
        settings: VLLMSettings = opening.settings
        recipe, urls = opening.recipe, opening.urls or settings.urls
        servers = None if urls else started(opening)
        return cls(
            settings,
            urls if servers is None else servers.urls,
            tokenizer=opening.tokenizer,
            room=recipe.sampling.max_tokens,
            servers=servers,
            base=recipe.base,
        )

    def called(self, who: str) -> None:
        """Sets the name of the engine's owner, for messages."""
        self.replicas.who = who

    async def attachable(self) -> Sequence[str] | None:
        """Returns the servers with the last weights; None unless they report the weight version of every token.

        Raises:
            EngineError: no server has the last weights.
        """
        await self.start()
        if not self._native or self._policy.version is not None:
            return None
        # Leaves out servers that missed an update: workers cannot know of it.
        urls = [replica.url for replica in self.replicas.all if not replica.unavailable_reason]
        if not urls:
            raise EngineError("no server took the last weights", remedy="restart the servers")
        return urls

    async def start(self) -> None:
        """Waits for the servers and checks that they fit the recipe. Other calls do so if it was not called.

        Raises:
            EngineError: a server is unreachable or incompatible; the message names the difference.
        """
        if self.max_context and not self._changed:
            return
        async with self._starting:
            if not self.max_context:
                await self._start()
            elif self._changed:
                await self._meet()

    def counts(self) -> dict[str, Any]:
        """Returns the version of the weights, and a row for each server."""
        return {"name": self.name, "version": self.version, "servers": self.replicas.counts()}

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """The session's first request chooses its server."""
        if self._images is not None:
            self._images.begin(session, messages)

    def use_images(self, session: str, read: Callable[[str], bytes]) -> None:
        """Sets the function that reads images of the session's messages by hash."""
        if self._images is not None:
            self._images.use(session, read)

    def check_image(self, data: bytes) -> None:
        """Checks that the model accepts an image.

        Raises:
            ImageRefused: it cannot be decoded, or has a size that the model does not take.
        """
        if self._images is not None:
            self._images.check(data)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Samples a completion. `max_tokens` is reduced to the rest of the context.

        An aborted completion continues after its last token, on any available server.

        Raises:
            ContextOverflow: the prompt fills the context.
            EngineError: all attempts failed.
            Refused: the server rejected the request, for example a token that the model does not have.
        """
        if not self.sees and min(token_ids, default=0) < 0:  # placeholders of images
            raise cannot_see("vllm")
        room = self.max_context - len(token_ids)
        if room < 1:
            raise ContextOverflow(
                f"{len(token_ids)} tokens leave no room for one more in a context of {self.max_context}",
                remedy="shorten the observations, lower max_turns, or serve the model with a larger context",
            )
        limit = min(sampling.max_tokens, room)
        whole = Completion(token_ids=[], logprobs=[], finish="abort", versions=[])
        stops = StopStrings(self._tokenizer.decode, sampling.stop) if sampling.stop else None
        for attempt in range(CONTINUATIONS):
            prompt = [*token_ids, *whole.token_ids] if whole.token_ids else token_ids
            piece = await self._sample(prompt, sampling, limit - len(whole.token_ids), session)
            whole = joined(whole, piece)
            # Checked here too: a stop string may span two pieces, and a server's step may give several tokens.
            if stops is not None and (count := stops.first(whole.token_ids)) is not None:
                return cut(whole, count)
            if piece.finish != "abort" or len(whole.token_ids) == limit:
                break
            await back_off(attempt, most_s=2.0)
        if whole.finish == "abort":
            if len(whole.token_ids) < limit:
                raise EngineError(f"the servers aborted the completion {CONTINUATIONS} times")
            whole = msgspec.structs.replace(whole, finish="length")
        return whole

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Log-probabilities (natural logarithm, temperature 1) of each continuation's tokens after the prefix.

        Sends one prompt per token. The servers compute only the part that is not in their prefix cache.
        `prompt_logprobs` would compute the whole prefix again, and can crash a server.

        Args:
            at: continuation k comes after the first `at[k]` (1 or more) tokens of the prefix; default: after all.

        Raises:
            ContextOverflow: a continuation does not fit into the context.
            AgentRLError: a continuation starts outside the prefix.
            EngineError: all attempts failed.
        """
        if min(prefix, default=0) < 0:
            raise CannotSee("the engine vllm cannot score prompts with images", remedy=TAKES_IMAGES)
        await self.start()
        starts = [len(prefix)] * len(continuations) if at is None else list(at)
        for start, branch in zip(starts, continuations, strict=True):
            if not 1 <= start <= len(prefix):
                raise AgentRLError(f"a continuation starts at token {start} of a prefix of {len(prefix)}")
            if start + len(branch) > self.max_context:
                raise ContextOverflow(f"{start} + {len(branch)} tokens in a context of {self.max_context}")
        # All requests go to one server, so that its prefix cache has the prefix.
        session = f"score {hash(tuple(prefix))}"
        branches = [(list(prefix[:start]), list(one)) for start, one in zip(starts, continuations, strict=True)]
        await self._open.wait()
        policy = self._begin()
        try:
            scored = (self._score(policy, before, one, session) for before, one in branches)
            return list(await asyncio.gather(*scored))
        finally:
            self._end(policy)
            self.replicas.end_session(session)

    async def update(self, weights: Mapping[str, Tensor] | Adapter, version: int) -> None:
        """Updates the weights. Completions in flight continue under the new weights; their version spans show it.

        Args:
            weights: state dict with checkpoint names, or a LoRA adapter. With an adapter, completions in flight finish
                under the adapter that they began with.

        Raises:
            NoAdapters: a server rejected the first adapter; `takes_adapters` is false from now on.
            EngineError: the update failed on every server. If it failed on some, these get no requests until an update
                succeeds.
        """
        await self.start()
        async with self._updating:
            await self._control.wake()
            if isinstance(weights, Adapter):
                self._sample_from(_Policy(await self._send_adapter(weights, version), version))
            else:
                if not self._native or self._policy.version is not None:
                    # Wait for completions without version spans, and for those with an adapter on the old weights.
                    self._open.clear()
                    await self._idle.wait()
                try:
                    await self._control.send_weights(weights, version)
                    self._sample_from(_Policy(self._model))
                finally:
                    self._open.set()
            self.version, self._updated = version, True

    async def rest(self) -> None:
        """Frees the memory of GPUs that the trainer shares, until the next update: weights move to host memory, caches
        are dropped. Requests wait until then.

        Raises:
            EngineError: a server does not go to sleep.
        """
        if self.shares_gpu:
            await self.start()
            await self._control.sleep()

    def end_session(self, session: str) -> None:
        """Drops the assignment of the session to a server."""
        if self._images is not None:
            self._images.end(session)
        self.replicas.end_session(session)

    async def close(self) -> None:
        """Closes the connections and the servers that this process started."""
        if self._policy.version is not None and self._servers is None:
            await self._control.unload_adapter(self._policy.model)
        await self._client.close()
        await self._control.close()
        if self._servers is not None:
            await self._servers.close()

    async def refuse_trained(self) -> None:
        """Rejects servers that still have weights of an earlier training.

        Called before sampling a model that is not being trained. Servers without the native endpoint report no version
        and are not checked.

        Raises:
            EngineError: a server has trained weights.
        """
        await self.start()
        if self._servers is not None or not self._native:
            return
        settings = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "detokenize": False}
        body = {
            "model": self._policy.model,
            "token_ids": self._tokenizer.encode("a", special=False),
            "sampling_params": settings,
        }
        for replica in self.replicas.all:
            reply = await self._client.post(replica.url + NATIVE, body, NativeResponse)
            spans = reply.choices[0].weight_versions or []
            if any(span.version.isdecimal() for span in spans):
                raise EngineError(
                    f"the server holds weights of a training (version {spans[0].version}), not those of its model",
                    place=replica.url,
                    remedy="restart it with agentrl serve; model.path=CHECKPOINT serves what a training wrote",
                )

    @property
    def _changed(self) -> bool:
        """True if the set of servers that this process started has changed."""
        return self._servers is not None and tuple(self._servers.urls) != tuple(r.url for r in self.replicas.all)

    async def _meet(self) -> None:
        """Adds new servers and removes those that ended.

        After a weight update, a new server gets no requests until the next update. An adapter is loaded at once.
        """
        assert self._servers is not None
        known = {replica.url: replica for replica in self.replicas.all}
        urls = list(self._servers.urls)
        for url in urls:
            if url not in known:
                known[url] = Replica(url, unavailable_reason="started after the last update" if self._updated else "")
                try:
                    server = await self._check(url)
                    known[url].world_size = server.world_size
                except EngineError as error:
                    known[url].unavailable_reason = error.message
                    continue
                if self._policy.version is not None:
                    await self._control.load_adapter([known[url]], self._policy.model)
        self.replicas.all = [known[url] for url in urls]

    async def _start(self) -> None:
        if self._servers is not None:
            await self._servers.ready()
            self.replicas.all = [Replica(url) for url in self._servers.urls]
        found = [await self._check(replica.url) for replica in self.replicas.all]
        if len({server.model for server in found}) > 1:
            raise EngineError(f"the servers serve different models: {', '.join(server.model for server in found)}")
        context = min(server.max_context for server in found)
        if context <= self._room:
            raise EngineError(
                f"the servers take {context} tokens, and one turn may have {self._room}",
                place="sampling.max_tokens",
                remedy="serve the model with a larger --max-model-len, or lower sampling.max_tokens",
            )
        self._model, self._policy, self.max_context = found[0].model, _Policy(found[0].model), context
        self._native = all(server.native for server in found)
        for replica, server in zip(self.replicas.all, found, strict=True):
            replica.world_size = server.world_size

    async def _check(self, url: str) -> ServerFacts:
        retries = self._settings.retries
        return await check_server(url, self._client, self._tokenizer, retries=retries, sees=self.sees)

    async def _sample(self, prompt: Sequence[int], sampling: Sampling, limit: int, session: str) -> Completion:
        if self._changed:
            await self.start()
        await self._open.wait()
        version = self.version
        settings: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": limit,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,  # only the recipe's stop tokens end a turn
            "logprobs": 0,
        }
        if sampling.stop:
            settings |= {"stop": list(sampling.stop), "include_stop_str_in_output": True, "skip_special_tokens": False}
        if self._settings.seeded and sampling.seed is not None:
            # Each piece of a continued completion has its own seed.
            settings["seed"] = (sampling.seed + len(prompt)) & (1 << 62) - 1
        policy = self._begin()
        try:
            if self._native:
                params = {**settings, "detokenize": bool(sampling.stop)}
                body: dict[str, Any] = {"token_ids": prompt, "sampling_params": params}
                if self._images is not None and min(prompt, default=0) < 0:
                    body |= await asyncio.to_thread(self._images.shown, prompt, session)
                native = await self._ask(policy, NATIVE, body, NativeResponse, session, self._restarted)
                completion, times = from_native(native.choices[0], version), native.metrics
            else:
                if min(prompt, default=0) < 0:
                    raise cannot_see("vllm without --enable-scale-out")
                body = {"prompt": prompt, "return_token_ids": True, **settings}
                reply = await self._ask(policy, COMPLETIONS, body, CompletionsResponse, session)
                completion, times = from_completions(reply.choices[0], version), reply.metrics
        finally:
            self._end(policy)
        if times is not None:
            completion = times.onto(completion)
        if policy.version is not None:
            spans = [VersionSpan(policy.version, 0, len(completion.token_ids))]
            return msgspec.structs.replace(completion, versions=spans)
        return completion

    def _begin(self) -> _Policy:
        """The policy for a request. It is not unloaded from the servers until `_end`."""
        policy = self._policy
        self._under_way[policy.model] += 1
        self._idle.clear()
        return policy

    def _end(self, policy: _Policy) -> None:
        """A request has its reply, or failed."""
        self._under_way[policy.model] -= 1
        if not self._under_way[policy.model] and not self._under_way.total():
            self._idle.set()
        self._retire(policy)

    async def _ask(
        self,
        policy: _Policy,
        path: str,
        body: dict[str, Any],
        kind: type[T],
        session: str,
        wrong: Callable[[T], str] | None = None,
    ) -> T:
        """Posts a request. If a server has lost the adapter (it restarted), loads it again and repeats the request."""
        body = {"model": policy.model, **body}
        try:
            return await self.replicas.post(path, body, kind, session=session, wrong=wrong)
        except Refused as refused:
            if refused.status != 404 or policy.version is None:
                raise
            await self._control.load_adapter(self.replicas.all, policy.model)
            return await self.replicas.post(path, body, kind, session=session, wrong=wrong)

    def _restarted(self, reply: NativeResponse) -> str:
        """Returns why a server must get no requests, else "": it restarted with untrained weights after an update."""
        versions = [span.version for span in reply.choices[0].weight_versions or []]
        if self._numbered and self._policy.version is None and versions[-1:] == [UNTRAINED]:
            return "it restarted, and has the model's initial weights until the next update"
        self._numbered |= any(map(str.isdecimal, versions))
        return ""

    async def _score(self, policy: _Policy, prefix: list[int], continuation: list[int], session: str) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(continuation), SCORED_AT_ONCE):
            wanted = continuation[start : start + SCORED_AT_ONCE]
            body = {
                "prompt": [prefix + continuation[: start + k] for k in range(len(wanted))],
                "max_tokens": 1,
                "temperature": 1.0,
                "logprobs": 0,
                "logprob_token_ids": sorted(set(wanted)),
                "return_tokens_as_token_ids": True,
            }
            reply = await self._unaborted(policy, body, session)
            for choice, token in zip(sorted(reply.choices, key=lambda choice: choice.index), wanted, strict=True):
                listed = (choice.logprobs.top_logprobs if choice.logprobs else None) or [None]
                score = (listed[0] or {}).get(f"token_id:{token}")
                if score is None:
                    raise EngineError("the server does not score tokens by id", remedy="vLLM 0.32 or newer is required")
                scores.append(score)
        return scores

    async def _unaborted(self, policy: _Policy, body: dict[str, Any], session: str) -> CompletionsResponse:
        """Returns a reply without aborted choices. Servers abort requests when they stop or update weights."""
        for attempt in range(CONTINUATIONS):
            reply = await self._ask(policy, COMPLETIONS, body, CompletionsResponse, session)
            if all(choice.finish_reason in ("stop", "length") for choice in reply.choices):
                return reply
            await back_off(attempt, most_s=2.0)
        raise EngineError(f"the servers aborted the scoring {CONTINUATIONS} times")

    async def _send_adapter(self, adapter: Adapter, version: int) -> str:
        try:
            return await self._control.send_adapter(adapter, version, first=self._policy.version is None)
        except NoAdapters:
            self.takes_adapters = False
            raise

    def _sample_from(self, policy: _Policy) -> None:
        before, self._policy = self._policy, policy
        self._retire(before)

    def _retire(self, policy: _Policy) -> None:
        """Unloads an adapter that was replaced and that no request uses."""
        if policy.version is None or policy == self._policy or self._under_way[policy.model]:
            return
        task = asyncio.create_task(self._control.unload_adapter(policy.model))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
