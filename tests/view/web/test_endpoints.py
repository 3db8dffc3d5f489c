"""Answers about single records: texts, blobs, damaged ones, and refusals with their status."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.commands.view import helpers
from agentrl.store import RunDir
from agentrl.types.errors import AgentRLError
from agentrl.view.web import files
from agentrl.view.web.endpoints import ENDPOINTS, answer, error_of
from agentrl.view.web.export import export
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.query import Query, RequestError
from tests.images import BLUE, RED
from tests.store.make import make_episode
from tests.view.web.test_server import make_run


@pytest.fixture
def library(tmp_path: Path) -> Iterator[RunLibrary]:
    """The library of a run with two groups of four; its text index is built."""
    library = RunLibrary(make_run(tmp_path / "run", groups=2), helpers(), cache=tmp_path / "cache", builds=False)
    library.run("run").texts.finish()
    yield library
    library.close()


def ask(library: RunLibrary, name: str, **asked: str) -> Any:
    return answer(library, name, Query({"run": "run", **asked}))


def damage(run: Path) -> None:
    """Makes all stored episodes unreadable."""
    (shard,) = (run / "episodes").iterdir()
    shard.write_bytes(bytes(shard.stat().st_size))


def refused(library: RunLibrary, name: str, **asked: str) -> tuple[int, dict[str, str]]:
    """The status and the error of a request that is refused."""
    with pytest.raises(RequestError) as refusal:
        ask(library, name, **asked)
    return refusal.value.status, error_of(refusal.value)["error"]


def test_a_text_in_a_list_is_found_by_its_place(library: RunLibrary) -> None:
    turns = library.run("run").reader.get("g0/0").turns
    found = ask(library, "text", id="g0/0", path="/episode/turns/2/text", start="1", length="5")
    assert found == {"text": turns[2].text[1:6], "start": 1, "size": len(turns[2].text)}
    result = ask(library, "text", id="g0/0", path="/episode/turns/1/calls/0/result")
    assert result["text"] == turns[1].calls[0].result


@pytest.mark.parametrize("path", ["/episode/turns/4/text", "/episode/turns/-1/text", "/episode/turns/x/text"])
def test_a_place_that_no_list_has_is_refused_with_the_remedy(library: RunLibrary, path: str) -> None:
    status, error = refused(library, "text", id="g0/0", path=path)
    assert (status, error["what"]) == (404, f"{path!r} is no text")
    assert error["remedy"] == "take a path from `cut`"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (RED, "image/png"),
        (b"\xff\xd8\xff\xe0 and so on", "image/jpeg"),
        (b"GIF89a and so on", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "text/plain; charset=utf-8"),
        (b"<svg onload='alert(1)'/>", "text/plain; charset=utf-8"),
    ],
)
def test_only_images_are_served_as_images(tmp_path: Path, data: bytes, kind: str) -> None:
    with RunDir.create(tmp_path / "run") as run:
        sha = run.put_blob(data)
        run.add(make_episode("a", turns=1, blob=sha))
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache", builds=False)
    assert ask(library, "blob", sha=sha) == (data, kind, len(data))
    assert ask(library, "blob", sha=sha, start="4", length="3") == (data[4:7], kind, len(data))
    library.close()


def test_a_turn_that_an_episode_does_not_have_has_no_prompt(library: RunLibrary) -> None:
    status, error = refused(library, "prompt", id="g0/0", turn="4")
    assert (status, error["what"]) == (404, "episode 'g0/0' has no tokens of a turn 4")


def test_the_credit_of_an_unknown_episode_is_refused(library: RunLibrary) -> None:
    status, error = refused(library, "credit", id="g9/0", estimator="grpo")
    assert (status, error["what"]) == (404, "no episode 'g9/0'")


def test_a_group_that_is_not_there_is_told_apart_from_one_that_cannot_be_read(
    library: RunLibrary, tmp_path: Path
) -> None:
    status, error = refused(library, "group", id="g9")
    assert (status, error["what"]) == (404, "no group 'g9'")
    damage(tmp_path / "run")
    status, error = refused(library, "group", id="g0")
    assert (status, error["what"]) == (500, "no episode of group 'g0' can be read")
    assert "agentrl check RUN" in error["remedy"]


def test_a_search_lists_a_damaged_episode_without_its_text(library: RunLibrary, tmp_path: Path) -> None:
    whole = ask(library, "search", q="house")
    damage(tmp_path / "run")
    found = ask(library, "search", q="house")
    assert found["total"] == whole["total"] == 8
    assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in whole["hits"]]
    assert all(hit["snippet"] for hit in whole["hits"])
    assert {len(hit["snippet"]) for hit in found["hits"]} == {0}


def test_without_a_text_index_there_are_no_filters_of_tools_and_components(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    library = RunLibrary(make_run(tmp_path / "run", groups=1), cache=tmp_path / "cache", builds=False)
    found = ask(library, "facets")
    assert [found[name] for name in ("tools", "components", "versions")] == [None] * 3
    assert found["status"] == {"done": 4}
    library.close()


def test_an_attempt_that_was_repeated_counts_as_a_failure_and_a_final_one_with_its_episode(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("bad", status="infra_error", created_at=50.0))
        for at, episode, final in ((30.0, "good", False), (10.0, "bad", False), (60.0, "bad", True)):
            run.add_failure({"episode": episode, "kind": "SandboxLost", "message": "gone", "final": final, "at": at})
        run.add_failure({"kind": "EngineError", "message": "busy"})
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache", builds=False)
    lost, engine = ask(library, "failures")["classes"]
    library.close()
    assert (lost["kind"], lost["count"], lost["episodes"]) == ("SandboxLost", 3, ["bad", "good"])
    assert (lost["first_at"], lost["last_at"]) == (10.0, 50.0)
    assert (engine["kind"], engine["count"], engine["episodes"]) == ("EngineError", 1, [])


def test_an_exported_page_lacks_the_image_that_is_missing_and_has_the_others(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        shas = [run.put_blob(image) for image in (RED, BLUE)]
        parts = [{"type": "image", "blob": sha, "width": 8, "height": 6, "format": "png"} for sha in shas]
        run.add(replace(make_episode("a", turns=1), prompt=[{"role": "user", "content": [*parts, *parts]}]))
    lost, kept = shas
    (tmp_path / "run" / "blobs" / lost[:2] / lost).unlink()
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache", builds=False)
    page = export(library, tmp_path / "page.html", 10).read_text(encoding="utf-8")
    library.close()
    data = json.loads(page.partition('id="agentrl-data">')[2].partition("</script>")[0])
    assert list(data["blobs"]) == [kept]
    assert kept == hashlib.sha256(BLUE).hexdigest()
    assert list(data["episodes"]) == ["a"]


def test_a_run_that_is_closed_during_a_request_is_asked_for_again(
    library: RunLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(library: RunLibrary, ask: Query) -> Any:
        run = library.run("run")
        run.reader.close()
        return run.reader.select("COUNT(*) FROM all_episodes")

    monkeypatch.setitem(ENDPOINTS, "head", closed)
    assert refused(library, "head") == (
        503,
        {"what": "the run was closed meanwhile", "place": "", "remedy": "ask again"},
    )


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (KeyError("reward"), "KeyError: 'reward'"),
        (sqlite3.OperationalError("disk I/O error"), "OperationalError: disk I/O error"),
        (PermissionError(13, "Permission denied", "/runs/a"), "Permission denied"),
    ],
)
def test_an_unexpected_error_is_told_in_a_line(
    library: RunLibrary, monkeypatch: pytest.MonkeyPatch, error: Exception, what: str
) -> None:
    def fails(library: RunLibrary, ask: Query) -> Any:
        raise error

    monkeypatch.setitem(ENDPOINTS, "head", fails)
    status, told = refused(library, "head")
    assert (status, told["what"]) == (500, what)


def test_an_install_without_the_page_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "APP", tmp_path)
    with pytest.raises(AgentRLError, match=r"(?s)the page of the viewer is missing.*reinstall agentrl"):
        files.page()
