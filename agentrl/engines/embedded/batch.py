"""Continuous batching: the decode loop of the embedded engine. Runs in one thread, without asyncio.

A running request has a row of the arena (KV cache), which holds all its tokens except the last. A decode step forwards
the last token of every row and samples the next. New requests are prefilled between two steps.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentrl.engines.embedded.cached_model import Predict, RowModel
from agentrl.engines.embedded.decode import Decoder
from agentrl.engines.embedded.forward.prefill import Fill
from agentrl.engines.embedded.forward.product import unpack
from agentrl.engines.embedded.kv_cache import Parked, ParkingLot, RowArena, common_prefix
from agentrl.engines.embedded.malloc import keep_freed_memory
from agentrl.engines.embedded.native import cached_model
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.engines.embedded.tiles import TiledModel
from agentrl.engines.embedded.weights import Weights
from agentrl.models.vision.encoder import KeptSight
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.models.vision.processor import ImageProcessor
from agentrl.types.engine import Sampling
from agentrl.types.errors import DeadPolicy, EngineError

KEPT_FEATURES = 256 << 20
"""Size in bytes of the cache of image features between passes."""

WORTH_SHARING = 16
"""Minimum number of saved tokens for which a request waits for, or searches, a prefix in another session."""

Entry = tuple[DecodeRequest, int, Parked | int | None]
"""A new request, the number of its cached tokens, and their source: a parked session or a running row."""


class Batch:
    """The requests of one model: waiting, running (row i of the arena belongs to `running[i]`), or parked.

    Args:
        invariant: compute in tiles (`agentrl.engines.embedded.tiles`).
        processor: of a model that sees.

    Attributes:
        forwarded_tokens: tokens forwarded so far, without padding.
        steps: decode steps so far.
        one_by_one: why rows are computed one by one (`agentrl.engines.embedded.native`); None if they are batched.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_batch: int,
        parked_bytes: int,
        invariant: bool = False,
        processor: ImageProcessor | None = None,
    ) -> None:
        self.model, self.max_batch = model, max_batch
        unpack(model)  # an engine before this one may have packed it
        self._cached: RowModel
        self.one_by_one: str | None = None
        self.sight = None if processor is None else KeptSight(model, ImageRegistry(processor), KEPT_FEATURES)
        self._shown: dict[str, set[int]] = {}  # numbers of images by session
        self._over: set[str] = set()  # sessions that have ended
        if invariant and processor is not None:
            raise EngineError(
                "images are not computed batch-invariantly",
                place="engine.batch_invariant",
                remedy="set it to false: sampled tokens do not depend on the batch, log-probabilities by about 1e-6",
            )
        if invariant:
            self._cached = TiledModel(model)
        else:
            self._cached, self.one_by_one = cached_model(model, self.sight)
        self._weights = Weights(model, self._cached.products)
        self._weights.pack(self._cached.prove)
        self.device = self._cached.device
        if self.device.type == "cpu":
            keep_freed_memory()
        self.arena: RowArena = self._cached.arena
        self._decoder = Decoder(self._cached)
        self.parked = ParkingLot(parked_bytes)
        self.waiting: deque[DecodeRequest] = deque()
        self.running: list[DecodeRequest] = []
        self.version = 0
        self.forwarded_tokens = self.steps = 0
        self._entering: list[DecodeRequest] = []
        self._leaving: list[tuple[int, str]] = []  # the rows in order
        self._stale = True

    @property
    def redrawn(self) -> int:
        """Number of draws repeated so far, because rounding could have decided them."""
        return self._decoder.redrawn

    def step(self) -> None:
        """Admits waiting requests, then samples one token for every running request. A prefill may also sample one."""
        self._drop_cancelled()
        self._forget_ended()
        self._admit()
        self._leave()
        if self.running:
            self._decode()

    def abort(self, error: BaseException) -> None:
        """Fails every waiting and running request, and drops all caches (they may be partly written)."""
        failed = dict.fromkeys([*self.running, *self._entering, *self.waiting])
        for requests in (self.running, self._entering, self.waiting, self._leaving):
            requests.clear()
        self.arena.clear()
        self.parked.clear()
        self._stale = True
        for request in failed:
            request.done(None, error)

    def end_session(self, session: str) -> None:
        """Frees the cache of a session."""
        self.parked.take(session)
        for request in (*self.running, *self.waiting):
            if request.session == session:
                request.keep = False
        if session in self._shown:
            self._over.add(session)

    def show(self, session: str, images: Mapping[str, Callable[[str], bytes]]) -> None:
        """Registers images until the session ends.

        Args:
            images: functions that read them, by hash.
        """
        if self.sight is not None:
            self._over.discard(session)
            shown = self._shown.setdefault(session, set())
            shown.update(self.sight.album.add(blob, read) for blob, read in images.items())

    def _forget_ended(self) -> None:
        """Forgets the images of sessions that have ended and have no request left."""
        if not self._over or self.sight is None:
            return
        busy = {request.session for request in (*self.running, *self.waiting)}
        for session in self._over - busy:
            gone = self._shown.pop(session, set())
            for number in gone - set().union(*self._shown.values()):
                self.sight.album.remove(number)
        self._over &= busy

    def update(self, weights: Mapping[str, Tensor], version: int, *, whole: bool = True) -> None:
        """Copies new weights into the model. Running requests continue under them; their caches are recomputed.

        Args:
            whole: require all weights. If False, missing weights keep their values.

        Raises:
            EngineError: names or shapes do not match; the old weights remain.
        """
        self._weights.take(weights, whole=whole)
        if self.sight is not None:
            self.sight.forget()
        self.version = version
        self.arena.clear()
        self.parked.clear()
        self._stale = True
        self.waiting.extendleft(reversed(self.running))
        self.running.clear()

    def score(
        self, prefix: list[int], continuations: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> list[list[float]]:
        """Log-probabilities (temperature 1) of each continuation after the first `start` tokens of the prefix.

        The prefix is forwarded once.
        """
        row = len(self.running)
        visitor = DecodeRequest("", prefix, Sampling(), 0, 0, lambda *_: None)
        self._enter([(visitor, *self._best_source(visitor))], row, None)
        branches = list(zip(continuations, starts, strict=True))
        self.forwarded_tokens += sum(len(branch) for branch, _ in branches)
        return self._cached.score(row, prefix, branches)

    def _drop_cancelled(self) -> None:
        for row in reversed(range(len(self.running))):
            if self.running[row].cancelled:
                self._vacate(row)
        if any(request.cancelled for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.cancelled)

    def _admit(self) -> None:
        """Gives rows to waiting requests and prefills them.

        If a prompt shares a long prefix with another new request (a group's prompt, a system message), the request
        waits until the other row is prefilled, and copies it: shared tokens are forwarded once. A request with the same
        prompt as another one also copies its logits.
        """
        room = min(len(self.waiting), self.max_batch - len(self.running))
        self._entering = [self.waiting.popleft() for _ in range(room)]
        now = time.perf_counter()
        for request in self._entering:
            request.begun = now if request.begun is None else request.begun  # an update of the weights readmits all
        while self._entering:
            leaders, twins, held_back = self._parted(self._entering)
            first = len(self.running)
            entering = [*(request for request, _, _ in leaders), *(twin for twin, _ in twins)]
            self.arena.reserve(first + len(entering), max(len(request.token_ids) for request in entering))
            logits = self._enter(leaders, first, self._cached.predict)
            rows = {id(request): first + number for number, (request, _, _) in enumerate(leaders)}
            for row, (twin, leader) in enumerate(twins, first + len(leaders)):
                self.arena.copy_row(rows[id(leader)], row, len(twin.token_ids))
                self.parked.take(twin.session)
            for request in entering:
                if not request.versions or request.versions[-1][0] != self.version:
                    request.versions.append((self.version, len(request.logprobs)))
                self.running.append(request)
            if self._cached.predict is not None:
                alike = [*range(len(leaders)), *(rows[id(leader)] - first for _, leader in twins)]
                self._append(first, *self._decoder.first(entering, logits[alike], len(self.running)))
            self._entering = held_back
            self._stale = True

    def _parted(
        self, entering: Sequence[DecodeRequest]
    ) -> tuple[list[Entry], list[tuple[DecodeRequest, DecodeRequest]], list[DecodeRequest]]:
        """Splits new requests into leaders, which are prefilled, the shortest first; twins, which have the same prompt
        as a leader, paired with it; and requests that wait for a leader's prefix."""
        leaders: list[Entry] = []
        twins: list[tuple[DecodeRequest, DecodeRequest]] = []
        held_back: list[DecodeRequest] = []
        for request in entering:
            first = (leader for leader, _, _ in leaders if leader.token_ids == request.token_ids)
            if self._cached.predict is not None and (leader := next(first, None)) is not None:
                twins.append((request, leader))
                continue
            cached, source = self._best_source(request)
            saves = cached + WORTH_SHARING
            if any(_shares(request.token_ids, leader.token_ids, saves) for leader, _, _ in leaders):
                held_back.append(request)
            else:
                leaders.append((request, cached, source))
        leaders.sort(key=lambda entry: len(entry[0].token_ids) - entry[1])
        return leaders, twins, held_back

    def _best_source(self, request: DecodeRequest) -> tuple[int, Parked | int | None]:
        """The longest cached prefix of a request: its length, and the parked session or running row that has it."""
        ids, wanted = request.token_ids, len(request.token_ids) - 1
        best = 0
        source: Parked | int | None = None
        if (own := self.parked.get(request.session)) is not None:
            best, source = self._usable(min(common_prefix(own.token_ids, ids), wanted), len(own.token_ids)), own
        if wanted - best <= WORTH_SHARING:
            return best, source
        others: list[tuple[list[int], Parked | int]] = [(r.token_ids, row) for row, r in enumerate(self.running)]
        others += [(parked.token_ids, parked) for parked in self.parked.newest_first()]
        for token_ids, place in others:
            if not _shares(ids, token_ids, best):
                continue
            # The last token of a running row is not in its cache yet.
            held = len(token_ids) - isinstance(place, int)
            if (length := self._usable(min(common_prefix(token_ids, ids), held, wanted), held)) > best:
                best, source = length, place
            if best == wanted:
                break
        return best, source

    def _usable(self, shared: int, held: int) -> int:
        """Returns how many of the first `shared` tokens of a cache of `held` are reusable. 0 if it cannot be cut."""
        return 0 if self.arena.whole and shared < held else shared

    def _enter(self, entries: list[Entry], first: int, predict: Predict | None) -> Tensor:
        """Fills the rows from `first` on: copies cached prefixes, then prefills the rest.

        Args:
            predict: prefills all tokens and returns the logits after them. None: prefills all tokens except the last of
                each request, and the returned logits are empty.
        """
        self.arena.reserve(first + len(entries), max(len(request.token_ids) for request, _, _ in entries))
        fills: list[Fill] = []
        for row, (request, cached, source) in enumerate(entries, first):
            if isinstance(source, int):
                self.arena.copy_row(source, row, cached)
            elif source is not None:
                self.arena.load(row, source.memory, cached)
            self.parked.take(request.session)
            fills.append(Fill(row, cached, request.token_ids[cached : -1 if predict is None else None]))
        self.forwarded_tokens += sum(len(fill.token_ids) for fill in fills)
        if predict is not None:
            return predict(fills)
        self._cached.fill(fills)
        return torch.empty(0)

    def _decode(self) -> None:
        """Samples one token for every running request, and removes finished requests."""
        if self._stale:
            self._decoder.lay_out(self.running)
            self._stale = False
        sampled = self._decoder.step()
        self.forwarded_tokens += len(self.running)
        self.steps += 1
        self._append(0, *sampled)
        self._leave()

    def _append(self, first: int, tokens: list[int], logprobs: list[float]) -> None:
        """Appends a sampled token to each row from `first` on."""
        if not math.isfinite(sum(logprobs)):
            raise DeadPolicy(f"the policy's log-probabilities are not finite (version {self.version})")
        for row, token, logprob in zip(range(first, len(self.running)), tokens, logprobs, strict=True):
            request = self.running[row]
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            if token in request.sampling.stop_token_ids or request.stopped():
                self._leaving.append((row, "stop"))
            elif len(request.logprobs) == request.limit:
                self._leaving.append((row, "length"))

    def _leave(self) -> None:
        """Completes the requests whose last token was sampled."""
        leaving, self._leaving = self._leaving, []
        for row, finish in reversed(leaving):
            request = self.running[row]
            if request.keep:
                held = len(request.token_ids) - 1
                self.parked.put(request.session, Parked(request.token_ids[:held], self.arena.save(row, held)))
            self._vacate(row)
            request.done(request.completion(finish), None)

    def _vacate(self, row: int) -> None:
        """Frees a row; the last row moves to its place."""
        last = self.running.pop()
        if row < len(self.running):
            self.arena.copy_row(len(self.running), row, len(last.token_ids) - 1)
            self.running[row] = last
        self._stale = True


def _shares(a: list[int], b: list[int], length: int) -> bool:
    """Returns True if `a` and `b` have a common prefix of more than `length` tokens."""
    return len(a) > length < len(b) and a[length] == b[length] and a[:length] == b[:length]
