"""The site: its source holds together, and the check of the built site finds what is broken."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.docs.blocks import FENCE, PAGES

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def module(name: str) -> ModuleType:
    """A program of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which the site is built."""
    into = tmp_path_factory.mktemp("site") / "docs"
    module("generate").stage(into)
    return into


def prose(path: Path) -> str:
    """A page without its code."""
    text = FENCE.sub("", path.read_text())
    return re.sub(r"`[^`\n]*`|<!--.*?-->", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of the headings of a page, as Python-Markdown makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())
        name, count = slug, 0
        while name in found:
            count += 1
            name = f"{slug}_{count}"
        found.add(name)
    return found | set(re.findall(r'<a id="([^"]+)"', path.read_text()))


def test_every_link_of_the_source_leads_somewhere(staged: Path) -> None:
    broken = []
    for page in sorted(staged.rglob("*.md")):
        for pair in LINK.findall(prose(page)):
            link = next(filter(None, pair))
            address, _, anchor = link.partition("#")
            if address.startswith(("http://", "https://", "mailto:")):
                continue
            target = page.parent / address if address else page
            if not target.is_file() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(staged)}: {link}")
    assert broken == []


def test_every_page_is_in_the_navigation_once(staged: Path) -> None:
    def paths(entry: object) -> list[str]:
        match entry:
            case str():
                return [entry]
            case list():
                return [path for each in entry for path in paths(each)]
            case dict():
                return [path for each in entry.values() for path in paths(each)]
        raise AssertionError(entry)

    text = (ROOT / "mkdocs.yml").read_text()
    navigation = yaml.safe_load(text)["nav"]
    assert [*map(next, map(iter, navigation))] == ["Start", "Guides", "Reference", "Recipes and methods", "Internals"]
    assert sorted(paths(navigation)) == sorted(str(path.relative_to(staged)) for path in staged.rglob("*.md"))


MOST_WORDS = 2_500


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_long(page: Path) -> None:
    assert len(page.read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("there.html", None),
        ("there.html#head", None),
        ("https://example.org/x", None),
        ("gone.html", "there is no such file"),
        ("there.html#gone", "there is no such anchor"),
        ("../outside.html", "leads out of the site"),
    ],
)
def test_the_check_of_the_built_site(link: str, fault: str | None, tmp_path: Path) -> None:
    check = module("check_site")
    (tmp_path / "outside.html").write_text("")
    site = tmp_path / "site"
    site.mkdir()
    (site / "there.html").write_text('<h1 id="head">There</h1>')
    (site / "index.html").write_text(f'<a href="{link}">x</a>')
    found = [each for each in check.faults(site) if not each.startswith("reference/api.html")]
    assert found == ([] if fault is None else [f"index.html: {link}: {fault}"])
    assert len([*check.faults(site)]) > len(found), "the site has no reference"
