"""The embedded engine: a transformers model in this process, with continuous batching.

The model runs in one worker thread. Coroutines send it requests and wait. KV caches of sessions persist between turns,
so a turn only forwards its new tokens. Importable without torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from agentrl.config.recipe import Recipe
from agentrl.config.sections import MAY_CHANGE, Section
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.engines.opening import EngineOpening
from agentrl.engines.stops import StopStrings
from agentrl.models.load import cast_weights, load_model, sees
from agentrl.models.vision.processor import ImageProcessor
from agentrl.types.engine import ChangedWeights, Completion, ContextOverflow, Engine, Sampling
from agentrl.types.errors import AgentRLError, EngineError, needs
from agentrl.types.parts.content import image_parts
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.intake import cannot_see
from agentrl.types.parts.placeholders import placed
from agentrl.types.task import Message, Task

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from agentrl.engines.embedded.batch import Batch

Reply = Callable[[Any, BaseException | None], None]


class TorchEngine(Engine):
    """Generates with a causal language model of transformers.

    Log-probabilities are float32. For a float32 model they equal those of a plain forward pass to 1e-5, and the tokens
    of a seeded completion do not depend on the batch: a draw that rounding could decide is repeated with its row alone
    (`agentrl.engines.embedded.decode`). Its log-probabilities depend on the batch by about 1e-6.

    Args:
        model: owned by the engine: `update` writes into it. Models that cache more than keys and values (linear
            attention, convolutions) compute row by row.
        max_context: maximum tokens of prompt and completion; default: the model's maximum position.
        decode: decodes token ids to text, for stop strings; None: stop strings are not supported.
        processor: of a model that sees.
        settings: those of `Settings`.

    Raises:
        EngineError: this model or machine cannot compute batch-invariantly.
    """

    class Settings(Section):
        """Settings in a recipe. The caches of running requests take up to max_batch * (longest episode) tokens; those
        of sessions between two turns are dropped, least recently used first, and recomputed."""

        max_batch: Annotated[int, MAY_CHANGE] = Field(
            64, gt=0, description="Maximum number of requests that are decoded together; the others wait."
        )
        parked_mb: Annotated[int, MAY_CHANGE] = Field(
            1024, ge=0, description="MiB of KV cache for sessions between two turns."
        )
        threads: Annotated[int, MAY_CHANGE] = Field(
            1, gt=0, description="Threads for tensor operations; more help models of 100 million parameters and more."
        )
        batch_invariant: bool = Field(
            False,
            description="On a CPU: log-probabilities are bit-identical whatever else is in the batch. Slower "
            "(docs/engines.md).",
        )

    name = "torch"
    trainable = holds_weights = True
    weights = "recipe"

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_context: int | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        processor: ImageProcessor | None = None,
        **settings: Any,
    ) -> None:
        own = self.Settings(**settings)
        self.max_context = max_context or int(model.config.get_text_config().max_position_embeddings)
        self.sees, self._processor = processor is not None, processor
        self._sessions: dict[str, _Images] = {}
        self.vocab_size = model.get_input_embeddings().num_embeddings
        self._threads, self._decode = own.threads, decode
        self._stops: dict[tuple[str, ...], StopStrings] = {}

        def batch() -> Batch:
            import torch

            from agentrl.engines.embedded.batch import Batch

            torch.set_num_threads(own.threads)
            return Batch(
                model.eval(),
                max_batch=own.max_batch,
                parked_bytes=own.parked_mb << 20,
                invariant=own.batch_invariant,
                processor=processor,
            )

        with ThreadPoolExecutor(1) as apart:  # checks at the start run in a thread, like the worker
            self._batch = apart.submit(batch).result()
        self.one_by_one = self._batch.one_by_one
        self._jobs: deque[tuple[Callable[[], None], Reply]] = deque()
        self._work = threading.Condition()
        self._over: EngineError | None = None
        self._closing = False
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any, BaseException | None]]] = {}
        self._thread = threading.Thread(target=self._run, name="agentrl-engine", daemon=True)
        self._thread.start()

    @classmethod
    def sees_images(cls, recipe: Recipe) -> bool:
        """Returns True if the recipe's model takes images."""
        return sees(recipe.required_model)

    @classmethod
    def open(cls, opening: EngineOpening) -> Self:
        """Loads the recipe's model; in training, copies the loaded one in the recipe's data type.

        Raises:
            RecipeError: the model cannot be found or lacks a part.
            MissingExtra: torch or transformers is not installed.
        """
        with needs("train"):
            import torch
        settings, loaded = opening.recipe.required_model, opening.loaded
        if loaded is None:
            loaded = load_model(settings, seed=opening.recipe.seed)
            model = loaded.model
        else:
            model = cast_weights(copy.deepcopy(loaded.model), getattr(torch, settings.dtype))
        decode, processor = opening.tokenizer.decode, loaded.processor
        return cls(model, max_context=loaded.max_context, decode=decode, processor=processor, **dict(opening.settings))

    @property
    def stats(self) -> dict[str, int]:
        """Counters for logs and tests: forwarded tokens, decode steps, repeated draws, running, waiting and parked
        sessions."""
        batch = self._batch
        return {
            "forwarded_tokens": batch.forwarded_tokens,
            "steps": batch.steps,
            "redrawn": batch.redrawn,
            "running": len(batch.running),
            "waiting": len(batch.waiting),
            "parked": len(batch.parked),
            "parked_bytes": batch.parked.used_bytes,
            "version": batch.version,
        }

    def counts(self) -> dict[str, Any]:
        """Returns the requests that run and wait, the sessions with a cache, and the version of the weights."""
        return {"name": self.name} | {name: self.stats[name] for name in ("running", "waiting", "parked", "version")}

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """The session's first call makes its cache."""
        if self.sees:
            self._sessions[session] = _Images(messages)

    def use_images(self, session: str, read: Callable[[str], bytes]) -> None:
        """Sets the function that reads images of the session's messages by hash."""
        if session in self._sessions:
            self._sessions[session].read = read

    def check_image(self, data: bytes) -> None:
        """Checks that the model accepts an image.

        Raises:
            ImageRefused: it cannot be decoded, or has a size that the model does not take.
        """
        if self._processor is not None:
            self._processor.check(data)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Samples a completion. `max_tokens` is reduced to the rest of the context.

        Raises:
            ContextOverflow: the prompt fills the context.
            AgentRLError: the prompt is empty or has ids outside the vocabulary.
            EngineError: the model failed, or the engine is closed.
        """
        prompt = list(token_ids)
        self._check(prompt, room=1)
        self._show(session, prompt)
        if sampling.max_tokens < 1:
            raise AgentRLError(f"max_tokens is {sampling.max_tokens}", remedy="ask for at least one token")
        future, reply = self._reply()
        request = DecodeRequest(
            session=session,
            token_ids=prompt,
            sampling=sampling,
            limit=min(sampling.max_tokens, self.max_context - len(prompt)),
            seed=(random.getrandbits(64) if sampling.seed is None else sampling.seed) & (1 << 64) - 1,
            done=reply,
            stops=self._stop_strings(sampling.stop),
        )
        self._post(lambda: self._batch.waiting.append(request), reply)
        try:
            completion: Completion = await future
        except asyncio.CancelledError:
            request.cancelled = True
            raise
        return completion

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Log-probabilities (natural logarithm, temperature 1) of each continuation's tokens after the prefix.

        The part of the prefix that is in no session's cache is forwarded once, then all continuations together.

        Args:
            at: continuation k comes after the first `at[k]` (1 or more) tokens of the prefix; default: after all.

        Raises:
            ContextOverflow: prefix and longest continuation do not fit into the context.
            AgentRLError: the prefix is empty, or has ids that the model does not have.
            EngineError: the model failed, or the engine is closed.
        """
        shared, branches = list(prefix), [list(branch) for branch in continuations]
        starts = [len(shared)] * len(branches) if at is None else list(at)
        self._check(shared, room=0)
        for branch, start in zip(branches, starts, strict=True):
            if not 1 <= start <= len(shared):
                raise AgentRLError(f"a continuation starts at token {start} of a prefix of {len(shared)}")
            if branch:
                self._check(shared[:start] + branch, room=0)
        scores: list[list[float]] = await self._call(lambda: self._batch.score(shared, branches, starts))
        return scores

    async def update(self, weights: nn.Module | Mapping[str, Tensor], version: int) -> None:
        """Updates the weights between two decode steps.

        Completions in flight continue under the new weights; their version spans show it.

        Args:
            weights: a state dict or a module. Must not change until this returns. `ChangedWeights`: missing weights
                keep their values; otherwise all are required.

        Raises:
            EngineError: names or shapes do not match; the old weights remain.
        """
        whole = not isinstance(weights, ChangedWeights)
        state = dict(weights) if isinstance(weights, Mapping) else weights.state_dict()
        await self._call(lambda: self._batch.update(state, version, whole=whole))
        self.takes_changes = self.takes_changes or whole

    def _show(self, session: str, prompt: list[int]) -> None:
        """Sends the worker the images of the session since the last prompt.

        Raises:
            ImageRefused: the prompt refers to an image that is in no message of the session.
        """
        if min(prompt) >= 0:
            return
        images = self._sessions.get(session) or _Images([])
        if new := images.new():
            self._post(lambda: self._batch.show(session, new), lambda *_: None)
        if unknown := [place.at for place in placed(prompt, images.told) if place.blob is None]:
            raise ImageRefused(
                f"token {unknown[0]} of the prompt names an image that no message of the conversation holds",
                remedy="put the image into a message",
            )

    def end_session(self, session: str) -> None:
        """Frees the cache of a session."""
        self._sessions.pop(session, None)
        with contextlib.suppress(EngineError):  # a closed engine has no caches
            self._post(lambda: self._batch.end_session(session), lambda *_: None)

    async def close(self) -> None:
        """Fails pending requests and ends the worker thread."""
        with self._work:
            self._closing = True
            self._work.notify()
        await asyncio.to_thread(self._thread.join)

    def _stop_strings(self, strings: tuple[str, ...]) -> StopStrings | None:
        if not strings:
            return None
        if self._decode is None:
            raise AgentRLError("stop strings need a tokenizer", remedy="TorchEngine(model, decode=tokenizer.decode)")
        if strings not in self._stops:
            self._stops[strings] = StopStrings(self._decode, strings)
        return self._stops[strings]

    def _check(self, ids: list[int], *, room: int) -> None:
        if not ids:
            raise AgentRLError("the prompt is empty", remedy="start it with a token, for example that of the template")
        if min(ids) < 0 and not self.sees:
            raise cannot_see("torch")
        if max(ids) >= self.vocab_size:
            bad = next(token for token in ids if token >= self.vocab_size)
            raise AgentRLError(
                f"token {bad} is not among the model's {self.vocab_size}", remedy="use the model's own tokenizer"
            )
        if len(ids) + room > self.max_context:
            raise ContextOverflow(
                f"{len(ids)} tokens leave no room for {room} more in a context of {self.max_context}",
                remedy="shorten the observations, lower max_turns, or raise max_context",
            )

    def _reply(self) -> tuple[asyncio.Future[Any], Reply]:
        """A future, and the function with which the worker resolves it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def reply(value: Any, error: BaseException | None) -> None:
            self._outbox.setdefault(loop, []).append((future, value, error))

        return future, reply

    async def _call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in the worker thread, between two decode steps."""
        future, reply = self._reply()
        self._post(lambda: reply(function(), None), reply)
        return await future

    def _post(self, job: Callable[[], None], reply: Reply) -> None:
        with self._work:
            if self._closing or self._over is not None:
                raise self._over or EngineError("the engine is closed")
            self._jobs.append((job, reply))
            self._work.notify()

    # The methods below run in the worker thread.

    def _run(self) -> None:
        import torch

        reason: BaseException | None = None
        try:
            torch.set_num_threads(self._threads)
            with torch.no_grad():
                while self._wait():
                    self._turn()
        except BaseException as error:
            reason = error
        finally:
            self._finish(reason)

    def _wait(self) -> bool:
        """Waits for work. False when the engine closes."""
        with self._work:
            while not (self._jobs or self._batch.running or self._batch.waiting or self._closing):
                self._work.wait()
            return not self._closing

    def _turn(self) -> None:
        """Runs the posted jobs and one decode step, and delivers the results."""
        while self._jobs:
            job, reply = self._jobs.popleft()
            try:
                job()
            except AgentRLError as error:  # rejected before it changed anything
                reply(None, error)
            except Exception as error:
                reply(None, _as_engine_error(error))
                self._batch.abort(_as_engine_error(error))
        try:
            self._batch.step()
        except Exception as error:
            # The engine continues. The episodes are retried with new caches.
            self._batch.abort(_as_engine_error(error))
        self._hand_over()

    def _hand_over(self) -> None:
        """Delivers all results of a step with one call per event loop."""
        outbox, self._outbox = self._outbox, {}
        for loop, answers in outbox.items():
            try:
                loop.call_soon_threadsafe(_resolve, answers)
            except RuntimeError:
                continue  # the loop was closed: the result is not awaited

    def _finish(self, reason: BaseException | None) -> None:
        with self._work:
            cause = "was closed" if reason is None else f"died: {type(reason).__name__}: {reason}"
            self._over = EngineError(f"the engine {cause}")
            self._over.__cause__ = reason
            left = list(self._jobs)
            self._jobs.clear()
        for _, reply in left:
            reply(None, self._over)
        self._batch.abort(self._over)
        self._hand_over()


@dataclass
class _Images:
    """The images of a session.

    Attributes:
        messages: of the live conversation.
        read: reads the file of an image.
        told: the images already sent to the worker.
    """

    messages: list[Message]
    read: Callable[[str], bytes] | None = None
    told: set[str] = field(default_factory=set)

    def new(self) -> dict[str, Callable[[str], bytes]]:
        """Returns readers for the images that the worker does not have yet."""
        if self.read is None:
            return {}
        found = {part["blob"] for part in image_parts(self.messages)} - self.told
        self.told |= found
        return dict.fromkeys(found, self.read)


def _as_engine_error(error: Exception) -> Exception:
    if isinstance(error, AgentRLError):
        return error
    wrapped = EngineError(f"the model failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _resolve(answers: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, value, error in answers:
        if future.done():
            continue  # cancelled meanwhile
        if error is None:
            future.set_result(value)
        else:
            # A copy for each future: an exception raised in several places would mix their tracebacks.
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            future.set_exception(own)
