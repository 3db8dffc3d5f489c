"""Line coverage of each room of agentrl/, child processes included, and whether a room lost any.

    python -m scripts.room_coverage run OUT.json [--data DATA] [--add DATA] [--checkout PATH] [-- PYTEST ARGUMENTS]
    python -m scripts.room_coverage compare OLD.json NEW.json

`run` tests a clone of the checkout's commit in an environment of its own (scripts/copies.py), so that any commit can be
measured as it is. Processes that are forked, started, or end by `os._exit` or SIGTERM count; those that SIGKILL ends do
not. A run that is stopped writes what it has.

`--data` keeps the database of coverage.py, in which each line has the tests that ran it (`measured_tests.py`);
`python -m scripts.mutants` selects tests by it. `--add` counts such a database of other tests too: a suite can be
measured in parts.

`compare` fails if a room has a lower share of its lines covered than before, and names the lines that were lost.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.copies import REPEATABLE, ROOT, WORK, Copy, copies_of, git, room_of, venv_here

INTERRUPTED = 2
"""The exit code of pytest when it is stopped."""
SETTINGS = """
[run]
core = ctrace
source = {source}
data_file = {data}
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""
REPORT = """
[run]
relative_files = true
source = agentrl
[paths]
agentrl =
    agentrl
    {source}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.room_coverage", description="Line coverage per room")
    kinds = parser.add_subparsers(required=True)
    run = kinds.add_parser("run", help="run tests and measure")
    run.add_argument("out", type=Path, help="JSON to write")
    run.add_argument("--data", type=Path, help="keep coverage.py's database here, with the tests of each line")
    run.add_argument("--add", type=Path, action="append", default=[], help="such a database of other tests")
    run.add_argument("--checkout", type=Path, default=ROOT, help="whose commit is measured")
    run.add_argument("--venv", type=Path, default=venv_here(), help="whose packages the copy uses")
    run.add_argument("--work", type=Path, default=WORK, help="where the copy is made")
    run.set_defaults(do=lambda given: measure(given))
    compare = kinds.add_parser("compare", help="fail if a room has less than before")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.add_argument("--repository", type=Path, default=ROOT, help="that has both commits")
    compare.set_defaults(do=lambda given: compared(given))
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:cut], argparse.Namespace(pytest=sys.argv[cut + 1 :]))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    code: int = given.do(given)
    return code


def measure(given: argparse.Namespace) -> int:
    """Runs the tests and writes the result. Returns the exit code of pytest."""
    with copies_of(given.checkout, 1, given.work, given.venv) as (copy,), tempfile.TemporaryDirectory() as folder:
        code = run_measured(copy, Path(folder), given.pytest)
        database = (given.data or Path(folder) / "all.data").resolve()
        combine(copy, Path(folder), database, given.add)
        measured = {"commit": git(copy.root, "rev-parse", "HEAD"), **lines(copy, database)}
    given.out.write_text(json.dumps(measured))
    show(measured)
    return code


def run_measured(copy: Copy, folder: Path, arguments: list[str]) -> int:
    """Runs pytest in a copy, with the data of every process in `folder`."""
    import coverage

    site = copy.packages
    for name in ("measured.py", "measured_tests.py"):
        (site / name).symlink_to(Path(__file__).with_name(name))
    if not (site / "coverage").exists():
        (site / "coverage").symlink_to(Path(coverage.__file__).parent)
    (site / "measured.ini").write_text(SETTINGS.format(source=copy.root / "agentrl", data=folder.resolve() / "data"))
    (site / "measured.pth").write_text("import measured\n")
    command = [str(copy.python), "-m", "pytest", "-p", "measured_tests", *REPEATABLE, *arguments]
    running = subprocess.Popen(command, cwd=copy.root, env=copy.environment, start_new_session=True)
    try:
        return running.wait()
    except (KeyboardInterrupt, SystemExit):
        print("stopped: what follows is of the tests that ran", file=sys.stderr)
        return INTERRUPTED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        (site / "measured.pth").unlink()


def combine(copy: Copy, folder: Path, database: Path, more: list[Path]) -> None:
    """Writes the data of all processes and of earlier runs to one database, whose paths begin with `agentrl/`."""
    from coverage import Coverage

    settings = folder / "report.ini"
    settings.write_text(REPORT.format(source=copy.root / "agentrl"))
    parts = [*map(str, folder.glob("data.*"))]
    for k, earlier in enumerate(more):
        parts.append(str(shutil.copy(earlier, folder / f"earlier.{k}")))
    database.unlink(missing_ok=True)
    with contextlib.chdir(copy.root):
        together = Coverage(data_file=str(database), config_file=str(settings))
        together.combine(parts)
        together.save()


def lines(copy: Copy, database: Path) -> dict[str, Any]:
    """The statements of each file by their first lines, those that ran, and the sums of each room."""
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(copy.root):
        (settings := Path(folder) / "report.ini").write_text(REPORT.format(source="agentrl"))
        report = Coverage(data_file=str(database), config_file=str(settings))
        report.load()
        # Tests run code under names of files that they never write.
        report.json_report(outfile=str(Path(folder) / "report.json"), ignore_errors=True)
        found = json.loads((Path(folder) / "report.json").read_text())["files"]
    files = {
        path: {"covered": one["executed_lines"], "lines": sorted(one["executed_lines"] + one["missing_lines"])}
        for path, one in sorted(found.items())
    }
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: {"lines": 0, "covered": 0})
    for path, one in files.items():
        for name in ("lines", "covered"):
            rooms[room_of(path)][name] += len(one[name])
    return {"rooms": dict(sorted(rooms.items())), "files": files}


def show(new: dict[str, Any], old: dict[str, Any] | None = None) -> None:
    """Prints a table: room, lines, covered, percent; and those of before."""
    before = (old or {"rooms": {}})["rooms"]
    table = Table("room", *(["lines before", "covered", "percent"] if old else []), "lines", "covered", "percent")
    for room in sorted({*new["rooms"], *before}):
        was = _cells(before.get(room)) if old else []
        table.add_row(room, *was, *_cells(new["rooms"].get(room)))
    totals = [_cells(_total(one["rooms"])) for one in ([old] if old else []) + [new]]
    table.add_row("all", *(cell for cells in totals for cell in cells))
    Console(width=160).print(table)


def _total(rooms: dict[str, dict[str, int]]) -> dict[str, int]:
    return {name: sum(room[name] for room in rooms.values()) for name in ("lines", "covered")}


def _cells(room: dict[str, int] | None) -> list[str]:
    return [str(room["lines"]), str(room["covered"]), f"{100 * _share(room):.2f}"] if room else ["", "", ""]


def _share(room: dict[str, int]) -> float:
    return room["covered"] / room["lines"] if room["lines"] else 1.0


def compared(given: argparse.Namespace) -> int:
    """Prints both, and the lines that lost their tests. Returns 1 if a room has a lower share."""
    old, new = json.loads(given.old.read_text()), json.loads(given.new.read_text())
    show(new, old)
    lost = {
        path: numbers
        for path in new["files"]
        if path in old["files"] and (numbers := lost_lines(path, old, new, given.repository))
    }
    for path, numbers in lost.items():
        print(f"no longer run: {path}:{','.join(map(str, numbers))}")
    lower = [
        room for room, now in new["rooms"].items() if room in old["rooms"] and _share(now) < _share(old["rooms"][room])
    ]
    if lower:
        print(f"lower than before: {', '.join(lower)}", file=sys.stderr)
    return int(bool(lower))


def lost_lines(path: str, old: dict[str, Any], new: dict[str, Any], repository: Path) -> list[int]:
    """The lines of a file that ran before and do not now, by their numbers of now; changed lines are left out."""
    if old["commit"] == new["commit"]:
        now = {number: number for number in old["files"][path]["covered"]}
    else:
        before, after = (git(repository, "show", f"{one['commit']}:{path}").split("\n") for one in (old, new))
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        now = {block.a + k + 1: block.b + k + 1 for block in blocks for k in range(block.size)}
    ran = {now[number] for number in old["files"][path]["covered"] if number in now}
    return sorted(ran & ({*new["files"][path]["lines"]} - {*new["files"][path]["covered"]}))


if __name__ == "__main__":
    sys.exit(main())
