import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentrl.store import RunDir
from agentrl.types.errors import AgentRLError
from agentrl.view.web import files
from agentrl.view.web.export import export
from agentrl.view.web.library import Helpers, RunLibrary
from agentrl.view.web.text_index import TextIndex
from tests.store.make import make_episode
from tests.view.web.test_server import files_of, make_run

EVIL = "</script><script>document.title='owned'</script><!-- <img src=x onerror=alert(1)> \u2028"


def exported(run: Path, folder: Path, *, episodes: int = 200, **helpers) -> Path:
    library = RunLibrary(run, Helpers(**helpers), cache=folder / "cache", builds=False)
    try:
        return export(library, folder / "out" / "page.html", episodes)
    finally:
        library.close()


def data_of(page: Path) -> dict:
    match = re.search(r'<script type="application/json" id="agentrl-data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert match
    return json.loads(match[1])


class Tags(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict]:
        return [attributes for found, attributes in self.found if found == tag]


def test_the_page_holds_the_run_and_nothing_from_outside(tmp_path):
    path = make_run(tmp_path / "run")
    page = exported(path, tmp_path, decoder=lambda run: lambda id: f"<{id}>")
    data = data_of(page)
    assert data["run"] == "run"
    assert len(data["rows"]) == len(data["episodes"]) == data["total"] == 12
    assert data["get"]["metrics"]["series"]["reward"] == [[0, 0], [1, 0.1], [2, 0.2]]
    assert data["episodes"]["g0/0"]["credit"]["parts"]["step"] == [0.5, -0.5, 0.1, 0.0]
    assert data["tokens"]["g0/0"]["nodes"][0]["text"][0].startswith("<")
    assert set(data["groups"]) == {"g0", "g1", "g2"}
    assert data["rows"][0]["components"]
    assert not data["get"]["head"]["can"]["recompute"]
    tags = Tags(page)
    assert [link["href"] for link in tags.of("link") if not link["href"].startswith("data:")] == []
    assert not [script for script in tags.of("script") if "src" in script]
    (policy,) = [meta["content"] for meta in tags.of("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_modules_are_found_by_their_bare_names(tmp_path):
    page = exported(make_run(tmp_path / "run"), tmp_path).read_text()
    (text,) = re.findall(r'<script type="importmap">(.*?)</script>', page, re.DOTALL)
    imports = json.loads(text)["imports"]
    assert imports
    for name, url in imports.items():
        kind, _, code = url.partition(";base64,")
        assert kind.startswith("data:text/javascript"), name
        module = base64.b64decode(code).decode()
        for wanted in re.findall(r'^\s*(?:import|export)\b[^;"\']*?from\s*["\']([^"\']+)', module, re.MULTILINE):
            assert wanted in imports, f"{name} imports {wanted}"
    assert files.names()


def test_content_cannot_break_out_of_the_page(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("evil", answer=EVIL, group=EVIL))
    page = exported(tmp_path / "run", tmp_path, decoder=lambda run: lambda id: EVIL)
    tags = Tags(page)
    assert [script.get("type") for script in tags.of("script")] == ["application/json", "importmap", "module"]
    assert tags.of("img") == []
    assert data_of(page)["episodes"]["evil"]["episode"]["answer"] == EVIL


def test_a_sample_is_made_of_whole_groups_from_all_over_the_run(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for group in range(50):
            for member in range(4):
                run.add(make_episode(f"{group}/{member}", turns=1, group=f"g{group}", created_at=group + member / 10))
    data = data_of(exported(tmp_path / "run", tmp_path, episodes=22))
    groups = [int(row["id"].split("/")[0]) for row in data["rows"]]
    assert data["total"] == 200
    assert len(groups) == 20
    assert {groups.count(group) for group in groups} == {4}
    assert {0, 49} < set(groups)
    assert groups == sorted(groups)


def test_a_page_has_the_best_and_the_worst_turn_of_the_run(tmp_path):
    path = make_run(tmp_path / "run")
    with RunDir.open(path) as run:
        run.add_credit("g1/0", "gigpo", [0.5, -2.0, 1.5, 0.0], {})
    data = data_of(exported(path, tmp_path, episodes=2))
    assert data["get"]["facets"]["worst_turn"]["id"] == "g1/0"
    assert "g1/0" in data["episodes"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_a_page_has_both_turns_if_their_groups_do_not_fit(tmp_path, limit):
    with RunDir.create(tmp_path / "run") as run:
        for group in range(5):
            for member in range(4):
                run.add(make_episode(f"{group}/{member}", turns=1, group=f"g{group}", created_at=group + member / 10))
        run.add_credit("1/3", "grpo", [2.0], {})
        run.add_credit("3/2", "grpo", [-2.0], {})
    ids = [row["id"] for row in data_of(exported(tmp_path / "run", tmp_path, episodes=limit))["rows"]]
    assert len(ids) == limit
    assert {"1/3", "3/2"} <= {*ids, *(["3/2"] if limit == 1 else [])}
    assert {id[0] for id in ids} <= {"1", "3"}


def test_a_page_reads_its_own_episodes_alone_and_says_so(tmp_path, monkeypatch):
    with RunDir.create(tmp_path / "run") as run:
        for group in range(50):
            run.add(make_episode(f"{group}/0", turns=1, group=f"g{group}", components={"found": 0.5}))
    added, add = [], TextIndex._add
    monkeypatch.setattr(TextIndex, "_add", lambda index, id: (added.append(id), add(index, id)))
    data = data_of(exported(tmp_path / "run", tmp_path, episodes=4))
    assert sorted(added) == sorted(row["id"] for row in data["rows"])
    assert len(added) == 4
    facets = data["get"]["facets"]
    assert facets["index"] == {"state": "sampled", "done": 4, "of": 50, "problem": None}
    assert facets["components"]["found"]["count"] == 4
    assert {row["components"]["found"] for row in data["rows"]} == {0.5}


def test_a_group_larger_than_the_sample_is_cut(tmp_path):
    assert len(data_of(exported(make_run(tmp_path / "run"), tmp_path, episodes=3))["rows"]) == 3


def test_an_empty_run_makes_a_page(tmp_path):
    RunDir.create(tmp_path / "run").close()
    assert data_of(exported(tmp_path / "run", tmp_path))["rows"] == []


def test_a_damaged_record_is_named_and_the_rest_is_there(tmp_path):
    path = make_run(tmp_path / "run")
    (shard,) = (path / "episodes").iterdir()
    shard.write_bytes(shard.read_bytes()[:-20])
    data = data_of(exported(path, tmp_path))
    assert len(data["rows"]) == 12
    assert len(data["episodes"]) == 11
    (place,) = data["get"]["head"]["damage"]
    assert place.startswith("episodes/00000.jsonl.zst@")


def test_nothing_is_written_to_the_run(tmp_path):
    path = make_run(tmp_path / "run")
    before = files_of(path)
    exported(path, tmp_path)
    assert files_of(path) == before


def test_a_folder_of_runs_is_no_page(tmp_path):
    make_run(tmp_path / "runs" / "one")
    with pytest.raises(AgentRLError, match="name a run"):
        exported(tmp_path / "runs", tmp_path)
