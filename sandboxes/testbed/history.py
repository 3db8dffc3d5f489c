"""The repository of the image `agentrl/testbed`: a small package whose bugs are repaired one by one, and rows of them.

    python history.py make FOLDER      makes the repository
    python history.py rows             prints the rows in the form of SWE-bench, a line each

The first commit has all bugs. Each further one repairs a bug and adds a test. Dates and names are fixed, so that
commits have the same hashes on every machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Bug(NamedTuple):
    """A bug of a function: what is right in the module, what is wrong, and what the test asserts."""

    module: str
    name: str
    issue: str
    right: str
    wrong: str
    test: str


PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "depot"
version = "0.4.0"
description = "Small functions of a warehouse: amounts, dates, labels, shelves."

[tool.setuptools]
packages = ["depot"]
"""

MODULES = {
    "amounts": '''\
"""Amounts of money, in whole cents."""


def parse(text):
    """Cents of a text such as "12.50" or "-3"."""
    sign = -1 if text.startswith("-") else 1
    whole, _, part = text.lstrip("+-").partition(".")
    return sign * (int(whole or 0) * 100 + int(part.ljust(2, "0")[:2]))


def show(cents):
    """The text of an amount: 1250 is "12.50"."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def split(cents, parts):
    """An amount in parts that differ by at most one cent; the larger ones come first."""
    each, rest = divmod(cents, parts)
    return [each + 1] * rest + [each] * (parts - rest)
''',
    "days": '''\
"""Dates and times of delivery."""

import datetime


def add_working(day, number):
    """The day that many working days (Monday to Friday) later."""
    while number > 0:
        day += datetime.timedelta(days=1)
        if day.weekday() < 5:
            number -= 1
    return day


def overlap(one, other):
    """Days that two spans (first and last day) share."""
    first, last = max(one[0], other[0]), min(one[1], other[1])
    return max(0, (last - first).days + 1)


def clock(minutes):
    """The time of day after midnight: 605 is "10:05"."""
    hours, rest = divmod(minutes % 1440, 60)
    return f"{hours:02d}:{rest:02d}"
''',
    "labels": '''\
"""Labels of goods."""

import re


def slug(text):
    """A text as part of an address: small letters, digits, single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def shorten(text, width):
    """A text of at most `width` characters; a cut one ends with "..."."""
    return text if len(text) <= width else text[: width - 3] + "..."


def check_digit(digits):
    """The last digit of a code: weights 3 and 1 from the right."""
    total = sum(int(each) * (3 if place % 2 == 0 else 1) for place, each in enumerate(reversed(digits)))
    return -total % 10
''',
    "shelves": '''\
"""Places on shelves, as half-open ranges (start, end)."""


def merge(ranges):
    """The ranges without overlaps, in order; neighbours become one."""
    merged = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def free(ranges, length):
    """The places of a shelf of that length that no range takes."""
    found, at = [], 0
    for start, end in merge(ranges):
        if start > at:
            found.append((at, start))
        at = end
    return found + [(at, length)] if at < length else found


def first_fit(ranges, length, size):
    """Where something of that size fits first; None if nowhere."""
    for start, end in free(ranges, length):
        if end - start >= size:
            return start
    return None
''',
    "stock": '''\
"""What is in stock, as a mapping from names to numbers."""


def take(stock, name, number):
    """The stock after a sale. Raises ValueError if there is not enough."""
    if stock.get(name, 0) < number:
        raise ValueError(f"not enough {name}")
    left = {**stock, name: stock[name] - number}
    return {each: count for each, count in left.items() if count}


def add(one, other):
    """Both stocks together."""
    names = [*one, *(each for each in other if each not in one)]
    return {name: one.get(name, 0) + other.get(name, 0) for name in names}


def lowest(stock, number):
    """The names with least in stock, least first; names in order where numbers are equal."""
    return sorted(stock, key=lambda name: (stock[name], name))[:number]
''',
    "units": '''\
"""Sizes and weights."""


def human(size):
    """A number of bytes with its unit: 1536 is "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size = size / 1024
    return f"{size:g} GiB"


def pounds(text):
    """Kilograms of a weight such as "3 lb 8 oz"."""
    words = text.split()
    weights = {"lb": 0.45359237, "oz": 0.45359237 / 16}
    return round(sum(float(number) * weights[unit] for number, unit in zip(words[::2], words[1::2])), 3)


def boxes(items, capacity):
    """The number of boxes for so many items."""
    return -(-items // capacity)
''',
    "routes": '''\
"""Ways between places, as a mapping from a place to its neighbours."""


def reachable(ways, start):
    """All places that can be reached, the start included."""
    seen, queue = {start}, [start]
    while queue:
        for place in ways.get(queue.pop(), ()):
            if place not in seen:
                seen.add(place)
                queue.append(place)
    return seen


def shortest(ways, start, end):
    """The way with the fewest steps, as a list of places; None if there is none."""
    paths = [[start]]
    seen = {start}
    while paths:
        path = paths.pop(0)
        if path[-1] == end:
            return path
        for place in ways.get(path[-1], ()):
            if place not in seen:
                seen.add(place)
                paths.append([*path, place])
    return None


def both_ways(ways):
    """The same ways, each in both directions."""
    found = {place: set(near) for place, near in ways.items()}
    for place, near in ways.items():
        for other in near:
            found.setdefault(other, set()).add(place)
    return {place: sorted(near) for place, near in found.items()}
''',
    "orders": '''\
"""Lines of orders, as texts."""


def fields(line):
    """The fields between commas; a comma in double quotes ends none."""
    found, quoted = [""], False
    for letter in line:
        if letter == '"':
            quoted = not quoted
        elif letter == "," and not quoted:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def discount(total, percent):
    """What is left of a total in cents; halves of a cent are rounded up."""
    return (total * (100 - percent) + 50) // 100


def number(text):
    """The number of an order such as "A-0017": (letter, 17)."""
    letter, _, digits = text.strip().upper().partition("-")
    return letter, int(digits)
''',
}

BASE_TESTS = {
    "amounts": ("parse('12.50') == 1250", "show(1250) == '12.50'", "sum(split(100, 3)) == 100"),
    "days": ("clock(605) == '10:05'", "add_working(datetime.date(2031, 1, 6), 0) == datetime.date(2031, 1, 6)"),
    "labels": ("slug('Red Box') == 'red-box'", "shorten('box', 9) == 'box'", "check_digit('0') == 0"),
    "shelves": ("merge([(0, 1), (5, 6)]) == [(0, 1), (5, 6)]", "first_fit([], 9, 3) == 0"),
    "stock": ("take({'nut': 3, 'cog': 1}, 'nut', 1) == {'nut': 2, 'cog': 1}", "add({'nut': 1}, {}) == {'nut': 1}"),
    "units": ("human(512) == '512 B'", "boxes(0, 4) == 0", "pounds('1 lb') == 0.454"),
    "routes": ("reachable({}, 'a') == {'a'}", "shortest({'a': ['b']}, 'a', 'b') == ['a', 'b']"),
    "orders": ("fields('a, b') == ['a', 'b']", "discount(1000, 10) == 900", "number('A-17') == ('A', 17)"),
}

BUGS = [
    Bug("amounts", "parse", "`parse('3.5')` gives 305 cents. One digit after the point means tenths: 350.",
        'int(part.ljust(2, "0")[:2])', 'int(part[:2] or 0)', "parse('3.5') == 350"),
    Bug("days", "add_working", "`add_working` counts Saturdays: two working days after a Friday are a Tuesday.",
        "day.weekday() < 5", "day.weekday() < 6",
        "add_working(datetime.date(2031, 1, 3), 2) == datetime.date(2031, 1, 7)"),
    Bug("labels", "slug", "`slug('Nuts & Bolts!')` ends with a hyphen, and has two in a row.",
        '''re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")''', '''re.sub(r"[^a-z0-9]", "-", text.lower())''',
        "slug('Nuts & Bolts!') == 'nuts-bolts'"),
    Bug("shelves", "merge", "`merge` leaves neighbours apart: (0, 2) and (2, 4) should become (0, 4).",
        "start <= merged[-1][1]", "start < merged[-1][1]", "merge([(0, 2), (2, 4)]) == [(0, 4)]"),
    Bug("stock", "take", "A name stays in the stock with the number 0 after all of it was sold with `take`.",
        "return {each: count for each, count in left.items() if count}", "return left",
        "take({'nut': 3}, 'nut', 3) == {}"),
    Bug("units", "human", "`human(1536)` says \"1 KiB\": the half is lost.",
        "size = size / 1024", "size = size // 1024", "human(1536) == '1.5 KiB'"),
    Bug("routes", "reachable", "`reachable` stops after the first step: places that are two steps away are missing.",
        "                queue.append(place)\n", "", "reachable({'a': ['b'], 'b': ['c']}, 'a') == {'a', 'b', 'c'}"),
    Bug("orders", "fields", "`fields` splits at commas in double quotes.",
        'letter == "," and not quoted', 'letter == ","', "fields('\"a, b\", c') == ['a, b', 'c']"),
    Bug("amounts", "show", "`show(-150)` gives \"-2.50\": negative amounts are rounded down.",
        'f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"', 'f"{cents // 100}.{cents % 100:02d}"',
        "show(-150) == '-1.50'"),
    Bug("days", "overlap", "`overlap` does not count the last day: spans that share one day share none.",
        "max(0, (last - first).days + 1)", "max(0, (last - first).days)",
        "overlap((datetime.date(2031, 1, 1), datetime.date(2031, 1, 5)),"
        " (datetime.date(2031, 1, 5), datetime.date(2031, 1, 9))) == 1"),
    Bug("labels", "shorten", "`shorten` makes texts that are three characters too long.",
        'text[: width - 3] + "..."', 'text[:width] + "..."', "shorten('warehouse', 8) == 'wareh...'"),
    Bug("shelves", "free", "`free` forgets the rest of the shelf behind the last range.",
        "return found + [(at, length)] if at < length else found", "return found",
        "free([(0, 2), (4, 5)], 9) == [(2, 4), (5, 9)]"),
    Bug("stock", "add", "`add` loses what only the second stock has.",
        "names = [*one, *(each for each in other if each not in one)]", "names = [*one]",
        "add({'nut': 1}, {'nut': 2, 'cog': 4}) == {'nut': 3, 'cog': 4}"),
    Bug("units", "pounds", "`pounds` takes ounces for pounds: 3 lb 8 oz are 1.588 kg.",
        '"oz": 0.45359237 / 16', '"oz": 0.45359237', "pounds('3 lb 8 oz') == 1.588"),
    Bug("routes", "shortest", "`shortest` finds a way, but not the one with the fewest steps.",
        "path = paths.pop(0)", "path = paths.pop()",
        "shortest({'a': ['e', 'b'], 'b': ['c'], 'c': ['d'], 'e': ['d']}, 'a', 'd') == ['a', 'e', 'd']"),
    Bug("orders", "discount", "`discount` rounds halves of a cent down: 50 percent of 101 cents are 51.",
        "(total * (100 - percent) + 50) // 100", "total * (100 - percent) // 100", "discount(101, 50) == 51"),
    Bug("amounts", "split", "`split(100, 3)` gives the odd cent to the last part, not to the first.",
        "[each + 1] * rest + [each] * (parts - rest)", "[each] * (parts - rest) + [each + 1] * rest",
        "split(101, 3) == [34, 34, 33]"),
    Bug("days", "clock", "`clock` does not know that a day ends: 1450 minutes are \"24:10\".",
        "divmod(minutes % 1440, 60)", "divmod(minutes, 60)", "clock(1450) == '00:10'"),
    Bug("labels", "check_digit", "`check_digit` weighs from the left, and is wrong for codes of an even length.",
        "enumerate(reversed(digits))", "enumerate(digits)", "check_digit('1234') == 8"),
    Bug("shelves", "first_fit", "`first_fit` passes over places of exactly the right size.",
        "end - start >= size", "end - start > size", "first_fit([(3, 9)], 9, 3) == 0"),
    Bug("stock", "lowest", "`lowest` puts names in order of insertion where numbers are equal.",
        "key=lambda name: (stock[name], name)", "key=lambda name: stock[name]",
        "lowest({'nut': 1, 'cog': 1, 'axle': 5}, 2) == ['cog', 'nut']"),
    Bug("units", "boxes", "`boxes` needs no box for a rest: 9 items in boxes of 4 are 3 boxes.",
        "-(-items // capacity)", "items // capacity", "boxes(9, 4) == 3"),
    Bug("routes", "both_ways", "`both_ways` forgets places that are only an end of ways.",
        "found.setdefault(other, set()).add(place)", "if other in found:\n                found[other].add(place)",
        "both_ways({'a': ['b']}) == {'a': ['b'], 'b': ['a']}"),
    Bug("orders", "number", "`number` fails on spaces and small letters, as in \" a-0017\".",
        "text.strip().upper().partition", "text.partition", "number(' a-0017') == ('A', 17)"),
]  # fmt: skip


def files(repaired: int) -> dict[str, str]:
    """The files of the repository after so many repairs, by path."""
    found = {
        "pyproject.toml": PYPROJECT,
        ".gitignore": "*.egg-info/\n__pycache__/\n",
        "depot/__init__.py": '"""A depot."""\n',
    }
    for module, source in MODULES.items():
        text = source
        for bug in BUGS[repaired:]:
            if bug.module == module:
                assert text.count(bug.right) == 1, bug.name
                text = text.replace(bug.right, bug.wrong)
        found[f"depot/{module}.py"] = text
        tests = [(f"test_base_{number}", each) for number, each in enumerate(BASE_TESTS[module])]
        tests += [(f"test_{bug.name}", bug.test) for bug in BUGS[:repaired] if bug.module == module]
        head = "import datetime\n\n" if module == "days" else ""
        names = ", ".join(line[4:].partition("(")[0] for line in source.splitlines() if line.startswith("def "))
        body = "".join(f"\n\ndef {name}():\n    assert {said}\n" for name, said in tests)
        found[f"tests/test_{module}.py"] = f"{head}from depot.{module} import {names}\n{body}"
    return found


def make(folder: Path) -> list[str]:
    """Makes the repository; returns its commits, the first one first."""
    fixed = {
        **os.environ,
        **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY.items()},
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
    }

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *words], env=fixed, capture_output=True, text=True, check=True)
        return done.stdout

    folder.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "-b", "main")
    commits = []
    for repaired in range(len(BUGS) + 1):
        for path, text in files(repaired).items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", f"Repair {BUGS[repaired - 1].name}" if repaired else "Depot 0.4")
        commits.append(git("rev-parse", "HEAD").strip())
    return commits


_IDENTITY = {"NAME": "depot", "EMAIL": "depot@localhost", "DATE": "2031-01-01T00:00:00+0000"}


def passed(state: dict[str, str], tests: dict[str, str]) -> set[str]:
    """The tests that pass on the modules of a state, as SWE-bench names them."""
    found = set()
    for path, source in tests.items():
        module = path.removeprefix("tests/test_").removesuffix(".py")
        names: dict[str, object] = {}
        exec(state[f"depot/{module}.py"], names)
        exec("\n".join(line for line in source.splitlines() if not line.startswith("from depot.")), names)
        for name in [each for each in names if each.startswith("test_")]:
            try:
                names[name]()  # type: ignore[operator]
            except Exception:
                continue
            found.add(f"{path}::{name}")
    return found


def rows() -> list[dict[str, object]]:
    """A row for each repair: code and tests of its commit as two patches, on the commit before."""
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as made:
        commits = make(Path(made))
        for number, bug in enumerate(BUGS):
            before, after = files(number), files(number + 1)
            tests = {path: text for path, text in after.items() if path.startswith("tests/")}
            first, then = passed(before, tests), passed(after, tests)
            ends = (commits[number], commits[number + 1])
            diffs = [
                subprocess.run(
                    ["git", "-C", made, "diff", *ends, "--", part], capture_output=True, text=True, check=True
                ).stdout
                for part in ("depot", "tests")
            ]
            found.append(
                {
                    "instance_id": f"depot__depot-{number + 1}",
                    "repo": "depot/depot",
                    "base_commit": commits[number],
                    "problem_statement": bug.issue,
                    "patch": diffs[0],
                    "test_patch": diffs[1],
                    "FAIL_TO_PASS": json.dumps(sorted(then - first)),
                    "PASS_TO_PASS": json.dumps(sorted(then & first)),
                }
            )
    return found


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        for row in rows():
            print(json.dumps(row))
