import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentrl.store import RunDir
from agentrl.types.episode import Branch
from agentrl.view.html import export_html
from tests.store.make import make_episode
from tests.view.test_show import LOOK

EVIL = "</script><script>document.title='owned'</script><!-- <img src=x onerror=alert(1)> \u2028"


def data_of(page: Path) -> dict:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert match
    return json.loads(match[1])


def make_run(path: Path, groups: int = 3) -> RunDir:
    run = RunDir.create(path / "run", {"recipe": {"name": "house"}})
    for group in range(groups):
        for member in range(4):
            status = "infra_error" if group == member == 1 else "done"
            run.add(make_episode(f"g{group}/{member}", group=f"g{group}", iteration=group, status=status, branch=True))
        run.add_credit(f"g{group}/0", "gigpo", [0.5, -0.5, 0.1, 0.0], {"step": [0.5, -0.5, 0.1, 0.0]})
        run.add_metrics({"iteration": group, "reward": group / 10, "loss": None})
    run.add_failure({"kind": "EngineError", "message": EVIL})
    return run


class Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_the_page_holds_the_run_and_nothing_from_outside(tmp_path):
    with make_run(tmp_path) as run:
        page = export_html(run, tmp_path / "out" / "page.html", decode=lambda id: f"<{id}>")
    data = data_of(page)
    assert data["name"] == "house"
    assert len(data["episodes"]) == data["total"] == 12
    assert data["curves"]["reward"] == [[0, 0], [1, 0.1], [2, 0.2]]
    first = next(episode for episode in data["episodes"] if episode["id"] == "g0/0")
    assert first["credit"]["parts"]["step"] == [0.5, -0.5, 0.1, 0.0]
    assert data["vocabulary"][str(first["nodes"][0]["token_ids"][0])].startswith("<")
    text = page.read_text()
    assert "https://" not in text
    assert not re.search(r'(src|href)="(?!#)', text.split('id="data"')[0])


def test_content_cannot_break_out_of_the_page(tmp_path):
    with make_run(tmp_path, groups=1) as run:
        run.add(make_episode("evil", answer=EVIL, group=EVIL))
        page = export_html(run, tmp_path / "page.html", decode=lambda id: EVIL)
    scripts = Scripts()
    scripts.feed(page.read_text())
    assert [attrs for tag, attrs in scripts.tags if tag == "script"] == [{"type": "application/json", "id": "data"}, {}]
    assert not [tag for tag, _ in scripts.tags if tag == "img"]
    assert any(episode.get("answer") == EVIL for episode in data_of(page)["episodes"])


def test_a_sample_is_made_of_whole_groups_from_all_over_the_run(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        for group in range(50):
            for member in range(4):
                run.add(make_episode(f"{group}/{member}", turns=1, group=f"g{group}", created_at=group + member / 10))
        page = export_html(run, tmp_path / "page.html", episodes=22)
    data = data_of(page)
    groups = [int(episode["id"].split("/")[0]) for episode in data["episodes"]]
    assert data["total"] == 200
    assert len(groups) == 20
    assert {groups.count(group) for group in groups} == {4}
    assert {0, 49} < set(groups)
    assert groups == sorted(groups)


def test_a_group_larger_than_the_sample_is_cut(tmp_path):
    with make_run(tmp_path) as run:
        assert len(data_of(export_html(run, tmp_path / "page.html", episodes=3))["episodes"]) == 3


def test_an_empty_run_makes_a_page(tmp_path):
    with RunDir.create(tmp_path / "run") as run:
        assert data_of(export_html(run, tmp_path / "page.html"))["episodes"] == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_it(tmp_path):
    long = [{"role": "system", "content": "rules " * 1000}, {"role": "user", "content": "Find it."}]
    branch = Branch(turn=3, reason="edit", at_token=9, messages=[*long, {"role": "user", "content": "Go on."}])
    with make_run(tmp_path) as run:
        run.update_info(tools=[LOOK])
        run.add(make_episode("evil", answer=EVIL, group="evil", prompt=long, branches=[branch]))
        page = export_html(run, tmp_path / "page.html", decode=lambda id: f" {id}{EVIL}")

    def drawn(fragment: str) -> str:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]
        done = subprocess.run([*command, f"{page.as_uri()}{fragment}"], capture_output=True, text=True, timeout=120)
        return done.stdout

    transcript = drawn("#/evil")
    assert "<title>house · agentrl</title>" in transcript
    assert "Turn 3" in transcript
    assert "<summary>tools: look</summary><pre>look(query): Looks.</pre>" in transcript
    assert transcript.count("<summary>4500 more characters</summary>") == 1
    assert "2 messages as at the beginning" in transcript
    assert transcript.count('class="sibling') == 0
    siblings = drawn("#/g0%2F0?tokens")
    assert siblings.count('class="sibling') == 4 + siblings.count('class="siblings"')
    assert "mean log-prob" in siblings
    assert "owned" not in siblings.split("<title>")[1].split("</title>")[0]
