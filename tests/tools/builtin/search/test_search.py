"""The search and answer tools over a few documents."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.tools.base import ToolResult
from agentrl.tools.builtin.answer import Answer
from agentrl.tools.builtin.search.tool import Document, Search, SearchIndex, cut, open_index, words
from agentrl.tools.methods import toolbox
from agentrl.types.errors import MissingExtra, RecipeError, TaskError, ToolError
from agentrl.types.reporter import working_for
from agentrl.types.task import Task
from tests.works import Works

TASK = Task.of("t", "?")

CITIES = [
    Document("paris", "Paris", "Capital of France, on the Seine. " + "It is old. " * 12),
    Document("lyon", "Lyon", "City in France, on the Rhône."),
    Document("rome", "Rome", "Capital of Italy, on the Tiber."),
    Document("bogota", "Bogotá", "Capital of Colombia."),
    Document("twin-1", "Twin", "The same words."),
    Document("twin-2", "Twin", "The same words."),
]


async def opened(corpus: Any = CITIES, **settings: Any) -> Search:
    search = Search(corpus, **settings)
    await search.open(TASK, None)
    return search


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


# --- what the model sees --------------------------------------------------------------------------------------------


async def test_search_shows_id_title_and_beginning_best_first() -> None:
    shown = await (await opened(k=2, snippet=40)).search("the Seine in France")
    first, second = shown.split("\n\n")
    assert first.startswith("[paris] Paris\nCapital of France, on the Seine.")
    assert first.endswith("more characters]")
    assert second.startswith("[lyon] Lyon\n")


async def test_noise_answers_with_documents_that_were_not_asked_for() -> None:
    """By the task's data; the same query is answered the same way again."""
    shown = []
    for noise in (0.0, 1.0, 1.0):
        search = Search(CITIES, k=2)
        await search.open(Task.of("t", "?", noise=noise), None)
        shown.append([await search.search(word) for word in ("seine", "tiber", "france", "colombia")])
    assert shown[0] != shown[1] == shown[2]
    assert shown[0][0].startswith("[paris]")


async def test_fetch_shows_the_whole_document_and_counts_what_it_cuts() -> None:
    search = await opened(limit=100)
    text = CITIES[0].text
    shown = (await search.fetch("[paris]")).split("\n", 1)[1]
    kept, dropped = shown.split(" [... ")
    assert text.startswith(kept)
    assert len(kept) <= 100
    assert int(dropped.split()[0]) == len(text) - len(kept)
    assert await search.fetch("lyon") == "[lyon] Lyon\nCity in France, on the Rhône."


@pytest.mark.parametrize("query", ["", "  ", "?!", "the of"])
async def test_a_query_without_words_is_an_error_for_the_model(query: str) -> None:
    with pytest.raises(ToolError, match="no word to search for"):
        await (await opened()).search(query)


async def test_no_hit_and_unknown_id_are_errors_for_the_model() -> None:
    search = await opened()
    with pytest.raises(ToolError, match="no document contains any word of 'zebra quagga'"):
        await search.search("zebra quagga")
    with pytest.raises(ToolError, match="no document with the id 'madrid'"):
        await search.fetch("madrid")


async def test_the_schema_describes_both_methods() -> None:
    box = toolbox([await opened(), Answer()])
    assert list(box) == ["search", "fetch", "answer"]
    assert box["search"].schema["properties"]["query"]["description"].startswith("A few words")
    with pytest.raises(ToolError, match="unknown argument 'q'"):
        await box["search"].call({"q": "x"})


async def test_answer_ends_the_episode() -> None:
    given = await toolbox([Answer()])["answer"].call({"text": " Paris\n"})
    assert given == ToolResult(text="", done=True, answer="Paris")


# --- ranking --------------------------------------------------------------------------------------------------------


def test_words_fold_case_accents_and_plurals() -> None:
    assert words("The Cities of BOGOTÁ: 12 buses, glass") == ["city", "bogota", "12", "buse", "glass"]
    assert words("city bus") == ["city", "bus"]


def test_accents_and_ties() -> None:
    index = SearchIndex(CITIES)
    assert [hit.id for hit in index.find("bogota", 3)] == ["bogota"]
    assert [hit.id for hit in index.find("twin", 1)] == ["twin-1"]
    assert [hit.id for hit in index.find("twin", 9)] == ["twin-1", "twin-2"]
    assert index.find("quagga", 3) == []
    many = SearchIndex(
        [Document(str(number), "Twin", "apple" if number % 3 else "apple apple") for number in range(300)]
    )
    ids = [int(hit.id) for hit in many.find("apple", 200)]
    assert ids == [*range(0, 300, 3), *[number for number in range(300) if number % 3][:100]]


def test_scores_are_bm25() -> None:
    """Against the formula (Robertson and Zaragoza 2009; Lucene's idf), written out."""
    index = SearchIndex(
        [Document(str(n), "", text) for n, text in enumerate(["apple pear", "apple", "plum plum pear kiwi"])]
    )
    bodies = [["apple", "pear"], ["apple"], ["plum", "plum", "pear", "kiwi"]]
    mean = sum(map(len, bodies)) / 3

    def score(word: str, body: list[str]) -> float:
        frequency, documents = body.count(word), sum(word in other for other in bodies)
        idf = math.log(1 + (3 - documents + 0.5) / (documents + 0.5))
        return idf * frequency / (frequency + 1.5 * (1 - 0.75 + 0.75 * len(body) / mean))

    for query in ("apple pear", "plum", "pear kiwi apple"):
        expected = [sum(score(word, body) for word in query.split()) for body in bodies]
        assert index._ranking.get_scores(query.split()) == pytest.approx(expected, rel=1e-5)
        best = sorted((n for n in range(3) if expected[n] > 0), key=lambda n: -expected[n])
        assert [int(hit.id) for hit in index.find(query, 3)] == best


def test_cut_keeps_whole_words() -> None:
    assert cut("one two three", 13) == "one two three"
    assert cut("one two three", 9) == "one two [... 6 more characters]"


# --- where documents come from --------------------------------------------------------------------------------------


async def test_the_state_is_what_was_seen_in_any_order() -> None:
    one, two, fresh = [await opened(k=1) for _ in range(3)]
    for query in ("Paris", "Rome"):
        await one.search(query)
    for query in ("Rome", "Paris", "Rome"):
        await two.search(query)
    assert one.state_key() == two.state_key() != fresh.state_key()
    await fresh.fetch("twin-2")
    for id in ("rome", "lyon", "paris", "bogota", "twin-1"):
        await fresh.fetch(id)
    seen = "\n".join(f"{id} whole" for id in ("bogota", "lyon", "paris", "rome", "twin-1", "twin-2"))
    assert fresh.state_key() == hashlib.sha256(seen.encode()).hexdigest()[:16], "the same in every process"
    await two.fetch("rome")
    assert one.state_key() != two.state_key()


async def test_episodes_share_one_index_built_once() -> None:
    reads = 0

    def corpus() -> list[Document]:
        nonlocal reads
        reads += 1
        return CITIES

    searches = await asyncio.gather(*(opened(corpus) for _ in range(20)))
    assert reads == 1
    assert len({id(search._index) for search in searches}) == 1


def test_jsonl_lists_and_references(tmp_path: Path) -> None:
    row = {"id": "a", "title": "A", "text": "apple", "extra": 1}
    one = write(tmp_path / "one.jsonl", row, "", {**row, "id": "b"})
    two = write(tmp_path / "two.jsonl", {**row, "id": "c"})
    assert [hit.id for hit in open_index(one).find("apple", 9)] == ["a", "b"]
    assert [hit.id for hit in open_index([str(one), two, lambda: [CITIES[0]]]).find("apple paris", 9)][1:] == [*"abc"]
    assert open_index(str(one)) is open_index(one)
    assert len(open_index(f"{__name__}:CITIES")) == len(CITIES)
    assert len(open_index([{"id": "x", "title": "", "text": "y"}])) == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "docs.jsonl", {"id": "a", "title": "", "text": "old"})
    assert open_index(path).find("old", 1)
    write(path, {"id": "a", "title": "", "text": "newer"})
    assert not open_index(path).find("old", 1)


def test_errors_of_a_corpus_name_the_place(tmp_path: Path) -> None:
    row = {"id": "a", "title": "", "text": "x"}
    with pytest.raises(TaskError, match=r"docs\.jsonl:2: .*text"):
        open_index(write(tmp_path / "docs.jsonl", row, {"id": "b", "title": ""}))
    with pytest.raises(TaskError, match=r"bad\.jsonl:1"):
        open_index(write(tmp_path / "bad.jsonl", "{"))
    with pytest.raises(TaskError, match="there is no file"):
        open_index(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="the id 'a'"):
        open_index([row, row])
    with pytest.raises(TaskError, match="no document"):
        open_index(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(RecipeError, match="k must be at least 1"):
        Search(CITIES, k=0)
    for corpus in (tmp_path / "none.jsonl", [str(tmp_path / "none.jsonl")]):
        with pytest.raises(RecipeError, match=r"corpus: there is no file .*none\.jsonl"):
            Search(corpus)


def test_without_bm25s_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtra, match=r"agentrl-framework\[search\]"):
        Search(CITIES)


# --- the cache ------------------------------------------------------------------------------------------------------


def test_the_cache_is_used_follows_the_content_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bm25s

    builds = 0
    build = bm25s.BM25.index

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal builds
        builds += 1
        return build(*args, **kwargs)

    monkeypatch.setattr(bm25s.BM25, "index", counted)
    expected = [hit.id for hit in SearchIndex(CITIES, tmp_path).find("capital", 9)]
    assert builds == 1
    assert [hit.id for hit in SearchIndex(CITIES, tmp_path).find("capital", 9)] == expected
    assert builds == 1, "the second index comes from the disk"

    SearchIndex(CITIES[1:], tmp_path)
    assert builds == 2, "other documents, another index"

    for file in tmp_path.glob("*/*"):
        file.write_bytes(file.read_bytes()[:20])
    assert [hit.id for hit in SearchIndex(CITIES, tmp_path).find("capital", 9)] == expected
    assert builds == 3, "a damaged index is built anew"
    SearchIndex(CITIES, tmp_path)
    assert builds == 3, "and kept"
    assert not list(tmp_path.glob("draft-*"))


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert SearchIndex(CITIES, tmp_path / "file" / "cache").find("Paris", 1)


def test_an_index_tells_how_far_it_is_unless_it_is_cached(tmp_path: Path) -> None:
    many = [Document(id=str(number), title="", text=f"word{number}") for number in range(600)]
    for told in ([(0, 600), (256, 600), (512, 600), (600, 600)], []):
        with working_for(works := Works()):
            SearchIndex(many, tmp_path)
        assert works.of("words of the search index") == told


async def test_the_first_episode_tells_of_the_index_that_it_builds() -> None:
    with working_for(works := Works()):
        await opened([Document("told", "", "y")])
        await opened([Document("told", "", "y")])
    assert works.told[-1] == ("words of the search index", 1, 1), "from the thread that builds it"
