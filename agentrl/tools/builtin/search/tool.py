"""The `search` tool: local documents by BM25, embeddings, or both; and `fetch` for a whole document.

The index is built once per process, cached on disk by the hash of its documents, and shared by all episodes.
`Search` is the view of one episode.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import os
import random
import re
import shutil
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np

from agentrl.registry.checks import at_least_one
from agentrl.registry.references import is_reference, load_object
from agentrl.tools.base import Tool, tool
from agentrl.tools.builtin.search import served
from agentrl.tools.builtin.search import web_api as web
from agentrl.tools.builtin.search.dense import Dense, fused
from agentrl.tools.builtin.search.document import Document as Document
from agentrl.tools.builtin.search.minilm import encoder
from agentrl.tools.builtin.search.own import own
from agentrl.tools.builtin.search.requests import key_of, patience
from agentrl.tools.builtin.search.simulated import simulated
from agentrl.types.errors import MissingExtra, RecipeError, TaskError, ToolError, require_versions
from agentrl.types.reporter import report_work
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox


Corpus = str | Path | Callable[[], Iterable[Any]] | Iterable[Any]
"""Source of documents: a JSONL file (fields id, title, text), `pkg.module:function`, a function that returns
documents, the documents themselves, or a list of these."""


By = Literal["bm25", "dense", "hybrid"]
"""Ranking of documents: BM25; cosine of MiniLM embeddings; reciprocal rank fusion of both."""

Engine = Literal["index", "server", "serper", "searxng", "simulated", "self"]
"""Search engine: an index of this process; `agentrl search serve`; a web search by either API; a model (ZeroSearch);
the policy itself (SSRL)."""

_NEEDS: dict[str, tuple[str, ...]] = {
    "index": ("corpus",), "server": ("url",), "serper": ("api_key_env",), "searxng": ("url",),
    "simulated": ("url", "model"), "self": (),
}  # fmt: skip


class Search(Tool):
    """Offers `search(query)` and `fetch(id)`.

    Args:
        corpus: see `Corpus`.
        k: hits per query.
        snippet: characters of a document shown per hit.
        limit: characters of a document shown by `fetch`; the model sees the number of dropped ones.
        by: ranking of documents (`By`).
        engine: search engine (`Engine`). Settings of other engines are ignored, so that this key alone swaps engines.
        url: address of the server, the instance or the API.
        model: name of the model that plays the search engine.
        api_key_env: environment variable with the API key.
        timeout_s: timeout of one request to a server, of up to four.
        mask: engine self: masks the answer's tokens in the loss, as in SSRL.

    A task's data may hold `noise`, the probability of an answer with random documents, or of a model prompted for noisy
    ones (curriculum `zerosearch`).
    """

    parallel = True

    def __init__(
        self,
        corpus: Corpus | None = None,
        k: int = 5,
        snippet: int = 240,
        limit: int = 4000,
        by: By = "bm25",
        engine: Engine = "index",
        url: str | None = None,
        model: str | None = None,
        api_key_env: str | None = None,
        timeout_s: float = 30.0,
        mask: bool = True,
    ) -> None:
        at_least_one("search", k=k, snippet=snippet, limit=limit)
        if engine not in _NEEDS:
            raise RecipeError(f"search: engine is {engine!r}", remedy=f"give one of {', '.join(_NEEDS)}")
        given = {"corpus": corpus, "url": url, "model": model, "api_key_env": api_key_env}
        if missing := [name for name in _NEEDS[engine] if given[name] is None]:
            raise RecipeError(f"search: engine {engine} needs {' and '.join(missing)}", remedy="docs/search.md")
        if engine == "index":
            _check(by)
            _check_files(corpus)
        elif engine == "self":
            self.timeout_s = math.inf  # the policy has `limits.generate_s`
        else:
            key_of(api_key_env)
            self.timeout_s = patience(timeout_s)
        self.corpus, self.k, self.snippet, self.limit, self.by = corpus, k, snippet, limit, by
        self.engine, self.url, self.model, self.api_key_env = engine, url, model, api_key_env
        self._request_s, self.mask = timeout_s, mask
        self._seen: set[str] = set()
        self._found: dict[str, Document] = {}
        self._asked = 0

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Gets the shared index; the first episode of the process builds or loads it."""
        self._task, self._noise = task, float(task.data.get("noise", 0.0))
        if self.engine == "index" and self.corpus is not None:
            # In a thread: the first index takes seconds and must not block other episodes.
            self._index = await asyncio.to_thread(open_index, self.corpus, self.by)
        elif self._noise and self.engine != "simulated":
            raise TaskError(
                f"its `noise` needs documents to draw, and engine {self.engine} has none",
                place=f"task {task.id!r}",
                remedy="engine: index or simulated",
            )

    @tool
    async def search(self, query: str) -> str:
        """Search the library. Shows the id, the title and the beginning of the best documents.

        Args:
            query: A few words that the document should contain.
        """
        hits = await self.hits(query)
        return "\n\n".join(f"[{hit.id}] {hit.title}\n{self.shown(hit)}" for hit in hits)

    async def hits(self, query: str) -> list[Document]:
        """Returns the best documents for a query and records them as seen.

        Raises:
            ToolError: no document matches.
        """
        if not words(query):
            raise ToolError("the query has no word to search for")
        hits = await self._hits(query)
        if not hits:
            why = "you wrote nothing" if self.engine == "self" else f"no document contains any word of {query!r}"
            raise ToolError(f"{why}; try other words")
        self._seen.update(hit.text if self.engine == "self" else hit.id for hit in hits)
        self._found.update((hit.id, hit) for hit in hits)
        return hits

    def shown(self, hit: Document) -> str:
        """Cuts a document's text to the snippet; answers of the policy are shown whole."""
        return hit.text if self.engine == "self" else cut(hit.text, self.snippet)

    async def _hits(self, query: str) -> list[Document]:
        # Depends only on task and query, so that repeating a query returns the same noise.
        seed = derive_seed(0, "noise", self._task.id, query)
        rng = random.Random(seed)
        noisy = rng.random() < self._noise
        if self.engine == "index":
            if noisy:
                return rng.sample(self._index.documents, min(self.k, len(self._index)))
            return await asyncio.to_thread(self._index.find, query, self.k)
        if self.engine == "self":
            self._asked += 1
            return await own(query, self._asked, trained=not self.mask)
        if self.engine == "server":
            return await served.find(query, self.k, str(self.url), self._request_s)
        if self.engine == "simulated":
            answer = self._task.data.get("answer", "unknown")
            return await simulated(
                query, self.k, str(self.url), str(self.model), self.api_key_env, self._request_s, noisy=noisy,
                question=str(self._task.instruction[-1]["content"]), seed=seed % (1 << 31),
                answer=str(answer[0] if isinstance(answer, list) and answer else answer),
            )  # fmt: skip
        ask = web.serper if self.engine == "serper" else web.searxng
        return await ask(query, self.k, self.url, self.api_key_env, self._request_s)

    @tool
    async def fetch(self, id: str) -> str:
        """Read one document whole.

        Args:
            id: The id that a search showed in brackets.
        """
        document = await self.document(id.strip().strip("[]"))
        if document is None:
            raise ToolError(f"there is no document with the id {id!r}; use an id that a search showed in [brackets]")
        return f"[{document.id}] {document.title}\n{cut(document.text, self.limit)}"

    async def document(self, id: str) -> Document | None:
        """Returns the document with this id and records it as read; None if missing."""
        if self.engine == "index":
            found = self._index.get(id)
        elif self.engine == "server":
            found = await served.get(id, str(self.url), self._request_s)
        else:
            found = self._found.get(id)
        if found is not None:
            self._seen.add(f"{found.id} whole")
        return found

    def state_key(self) -> str:
        """Hash of the documents seen so far, in any order: episodes that read the same documents share a state."""
        return hashlib.sha256("\n".join(sorted(self._seen)).encode()).hexdigest()[:16]


class SearchIndex:
    """Index of documents. Queries are thread-safe.

    BM25 is Lucene's variant, k1 1.5, b 0.75. Embeddings are of title and text, cut to 128 tokens.

    Args:
        cache: folder for indexes; None: no cache on disk.
        by: ranking of documents.

    Raises:
        TaskError: the corpus is empty, or an id is not unique.
        MissingExtra: bm25s is not installed.
        RecipeError: the package of the embeddings is not installed.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        cache: Path | None = None,
        by: By = "bm25",
    ) -> None:
        self.documents = list(documents)
        self._by_id = {document.id: document for document in self.documents}
        if not self.documents:
            raise TaskError("the corpus to search has no document")
        if len(self._by_id) < len(self.documents):
            twice = Counter(document.id for document in self.documents).most_common(1)[0][0]
            raise TaskError(f"two documents of the corpus have the id {twice!r}", remedy="ids must be unique")
        self._ranking: Any = _ranking(self.documents, cache) if by != "dense" else None
        texts = [f"{document.title}. {document.text}" for document in self.documents]
        self._dense = Dense(texts, cache) if by != "bm25" else None

    def __len__(self) -> int:
        return len(self.documents)

    def get(self, id: str) -> Document | None:
        """Returns the document with this id; None if missing."""
        return self._by_id.get(id)

    def find(self, query: str, k: int) -> list[Document]:
        """Returns the `k` best documents, best first; ties in order of the corpus. BM25 requires a shared word."""
        if self._dense is None:
            best = self._by_words(query, k)
        elif self._ranking is None:
            best = self._dense.find(query, k)
        else:
            deep = max(k, _DEEP)
            best = fused([self._by_words(query, deep), self._dense.find(query, deep)], k)
        return [self.documents[position] for position in best]

    def _by_words(self, query: str, k: int) -> list[int]:
        known = [word for word in words(query) if word in self._ranking.vocab_dict]
        if not known:
            return []
        scores = self._ranking.get_scores(known)
        worst = np.partition(scores, -k)[-k] if k < len(scores) else 0.0
        candidates = np.flatnonzero((scores >= worst) & (scores > 0))
        return [int(place) for place in candidates[np.argsort(-scores[candidates], kind="stable")][:k]]


_DEEP = 100
"""Documents per ranking for the fusion."""


def cut(text: str, limit: int) -> str:
    """Cuts a text to at most `limit` characters, at a word boundary, and adds the number of dropped characters."""
    if len(text) <= limit:
        return text
    shown = text[:limit].rsplit(maxsplit=1)[0]
    return f"{shown} [... {len(text) - len(shown)} more characters]"


_WORD = re.compile(
    r"\b(?!(?:a|an|and|are|as|at|be|by|for|from|has|have|in|is|it|its|of|on|or|that|the|this|to|was|were|which|with)\b)\w+"
)


def words(text: str) -> list[str]:
    """Returns the searchable words of a text: lower case, without accents, function words and plural endings."""
    if not text.isascii():
        text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    found = _WORD.findall(text.lower())
    return [_known_singular(word) if len(word) <= _KEPT else _singular(word) for word in found]


_KEPT = 40
"""Characters of a word that is kept with its stem. The words of queries are the agent's: all of them stay in memory."""


def _singular(word: str) -> str:
    """Applies the S-stemmer (Harman, "How effective is suffixing?", JASIS 42, 1991)."""
    if len(word) <= 3 or not word.endswith("s"):
        return word
    if word.endswith("ies"):
        return word if word.endswith(("eies", "aies")) else word[:-3] + "y"
    if word.endswith("es"):
        return word if word.endswith(("aes", "ees", "oes")) else word[:-1]
    return word if word.endswith(("us", "ss")) else word[:-1]


_known_singular = functools.lru_cache(maxsize=1 << 17)(_singular)


# Indexes of this process by source of documents. Values keep a reference to the corpus, so that an `id()` in a key
# stays unique.
_opened: dict[Any, tuple[Corpus, SearchIndex]] = {}
_opening = threading.Lock()


def open_index(corpus: Corpus, by: By = "bm25") -> SearchIndex:
    """Returns the index of a corpus: from this process, from the disk, or built. Blocks while another thread builds.

    Raises:
        TaskError: a file is missing or malformed; the corpus is empty; an id is not unique.
        RecipeError: a reference names no object.
        MissingExtra: bm25s is not installed.
    """
    with _opening:
        key = (_source_key(corpus), by)
        if key not in _opened:
            _opened[key] = (corpus, SearchIndex(read_documents(corpus), cache_folder(), by))
        return _opened[key][1]


def cache_folder() -> Path:
    """Returns the folder of cached indexes: `$AGENTRL_CACHE/search`, by default `~/.cache/agentrl/search`."""
    return Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl") / "search"


def read_documents(corpus: Corpus) -> Iterator[Document]:
    """Yields the documents of a corpus, in order."""
    if isinstance(corpus, str) and is_reference(corpus) and not Path(corpus).exists():
        corpus = load_object(corpus, Path.cwd())
    if isinstance(corpus, str | Path):
        yield from _read_jsonl(Path(corpus))
        return
    for number, item in enumerate(corpus() if callable(corpus) else corpus):
        if isinstance(item, str | Path) or callable(item):
            yield from read_documents(item)
        else:
            yield _document(item, f"document {number} of the corpus")


_NO_FILE = {"place": "search: corpus", "remedy": "give ./file, relative to the recipe"}


def _read_jsonl(path: Path) -> Iterator[Document]:
    if not path.is_file():
        raise TaskError(f"there is no file {path}", **_NO_FILE)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _document(msgspec.Raw(line), f"{path}:{number}")


def _document(item: Any, place: str) -> Document:
    try:
        if isinstance(item, msgspec.Raw):
            return msgspec.json.decode(item, type=Document)
        return msgspec.convert(item, Document)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TaskError(str(error), place=place, remedy="a document has the fields id, title and text") from None


def _source_key(corpus: Corpus) -> Any:
    """Returns a key equal for equal corpora, without reading documents; a changed file changes the key."""
    if isinstance(corpus, list | tuple) and all(isinstance(item, str | Path) or callable(item) for item in corpus):
        return tuple(_source_key(item) for item in corpus)
    if isinstance(corpus, str | Path):
        path = Path(corpus)
        stat = path.stat() if path.is_file() else None
        return (str(path.resolve()), stat.st_mtime_ns, stat.st_size) if stat else str(corpus)
    return id(corpus)


def _ranking(documents: list[Document], cache: Path | None) -> Any:
    """Returns the bm25s retriever, from `cache` if present and intact."""
    bm25s = _import_bm25s()
    digest = hashlib.sha256(f"1 bm25s {bm25s.__version__}".encode())
    for document in documents:
        digest.update(msgspec.msgpack.encode(document))
    kept = cache / digest.hexdigest()[:32] if cache is not None else None
    if kept is not None and kept.is_dir():
        try:
            ranking = bm25s.BM25.load(kept, show_progress=False)
            if ranking.scores["num_docs"] == len(documents):
                return ranking
        except (OSError, ValueError, KeyError):
            pass  # damaged: rebuilt below
    ranking = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
    ranking.index(_words_of(documents), show_progress=False)
    report_work(_NAME, len(documents), len(documents))
    if kept is not None:
        _keep(ranking, kept)
    return ranking


_NAME = "words of the search index"
_TOLD_EVERY = 256  # documents


def _words_of(documents: list[Document]) -> list[list[str]]:
    """Returns the words of each document; a title counts twice."""
    found: list[list[str]] = []
    for number, document in enumerate(documents):
        if number % _TOLD_EVERY == 0:
            report_work(_NAME, number, len(documents))
        found.append(words(f"{document.title} {document.title} {document.text}"))
    return found


def _keep(ranking: Any, folder: Path) -> None:
    """Saves an index atomically, so that concurrent processes never load half of it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix="draft-"))
    except OSError:
        return  # cache not writable: the next process builds it again
    try:
        ranking.save(draft, show_progress=False)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)


def _check(by: By) -> None:
    """Raises RecipeError or MissingExtra if the ranking is unknown or unavailable."""
    if by not in get_args(By):
        raise RecipeError(f"search: by is {by!r}", remedy=f"give one of {', '.join(get_args(By))}")
    if by != "dense":
        _import_bm25s()
    if by != "bm25":
        encoder()


def _check_files(corpus: Any) -> None:
    """Raises RecipeError if a corpus names a missing file, before an episode opens it."""
    if isinstance(corpus, list | tuple) and all(isinstance(item, str | Path) or callable(item) for item in corpus):
        for item in corpus:
            _check_files(item)
    elif isinstance(corpus, str | Path) and not Path(corpus).is_file() and not is_reference(str(corpus)):
        raise RecipeError(f"there is no file {corpus}", **_NO_FILE)


def _import_bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtra("bm25s, which the search tool ranks with,", "search") from None
    require_versions("search")
    return bm25s
