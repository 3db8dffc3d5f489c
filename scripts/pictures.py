"""Makes the pictures of README.md and the docs: a learning curve, the viewer, and `agentrl top`.

python scripts/pictures.py                       # trains the quickstart into build/pictures/quickstart, then draws
python scripts/pictures.py --run runs/quickstart # draws a run that is there, without `top`, which shows a run at work
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

from agentrl.commands.top import Top
from agentrl.commands.view import helpers
from agentrl.store.run_dir import RunDir
from agentrl.tools.builtin.web.launching import Launch
from agentrl.view.curves import learning_curve
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.server import ViewServer

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
CURVE, VIEWER, TOP = PICTURES / "curve.png", PICTURES / "viewer.png", PICTURES / "top.svg"
SHOWN_AFTER = 20
"""Iterations after which `top` is drawn."""
WINDOW = {"width": 1280, "height": 800}
TERMINAL = (140, 40)


def draw_curve(run: Path, out: Path = CURVE) -> None:
    """Draws the success of a stored quickstart, by iteration.

    Raises:
        StoreError: there is no run, or it has no iteration yet.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with RunDir.read(run) as stored:
        trained = [line for line in stored.metrics() if line["split"] == "train"]
    learning_curve(trained, out, title="quickstart: eight mazes, 64 episodes an iteration")


def draw_viewer(run: Path, out: Path = VIEWER) -> None:
    """Takes a picture of the viewer: the turns, with their credit, of the episode that `instructive` chooses."""
    from playwright.sync_api import sync_playwright

    settings = Launch().settings()
    with tempfile.TemporaryDirectory() as cache, sync_playwright() as playwright:
        library = RunLibrary(run, helpers(), cache=Path(cache))
        server = ViewServer(library, port=0)
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        browser = playwright.chromium.launch(executable_path=settings["executable"], args=settings["args"])
        try:
            page = browser.new_context(viewport=WINDOW, color_scheme="light").new_page()
            page.goto(server.url)
            place = ("run", run.resolve().name, "episode", instructive(run))
            page.goto(server.url.partition("?")[0] + "#/" + "/".join(quote(part, safe="") for part in place))
            page.wait_for_selector(".turn .credit")
            page.wait_for_load_state("networkidle")
            page.locator("#turn-0").evaluate("turn => turn.scrollIntoView()")
            page.screenshot(path=out)
        finally:
            browser.close()
            server.shutdown()
            server.server_close()
            library.close()


def instructive(run: Path) -> str:
    """The id of the trained episode of three to six turns, with a success, whose turns have the most unequal credit."""
    with RunDir.read(run) as stored:
        rows = stored.select(
            "id FROM all_episodes WHERE split = 'train' AND turns BETWEEN 3 AND 6 AND reward > 0 ORDER BY created_at"
        )
        credits = [(id, stored.credit(id)) for (id,) in rows]
    spreads: dict[str, float] = {
        id: max(of.turn_advantages) - min(of.turn_advantages) for id, of in credits if of is not None
    }
    return max(spreads, key=spreads.__getitem__)


async def picture_of_top(run: Path) -> str:
    """Returns a picture of `agentrl top`, as SVG."""
    top = Top(run)
    async with top.run_test(size=TERMINAL) as pilot:
        await pilot.pause()
        return str(top.export_screenshot(title=f"agentrl top {run.name}"))


def train(run: Path) -> None:
    """Trains the quickstart, and draws `top` meanwhile.

    Raises:
        CalledProcessError: the training failed.
    """
    command = [sys.executable, "-m", "agentrl.cli", "quickstart", "--out", str(run)]
    with subprocess.Popen(command) as training:
        while training.poll() is None:
            time.sleep(0.5)
            if iterations(run / "metrics.jsonl") >= SHOWN_AFTER:
                TOP.write_text(asyncio.run(picture_of_top(run)))
                break
    if training.returncode:
        raise subprocess.CalledProcessError(training.returncode, command)


def iterations(metrics: Path) -> int:
    """Returns how many iterations of training have their line; 0 if there is no file."""
    return metrics.read_bytes().count(b'"split":"train"') if metrics.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("build/pictures/quickstart"), help="a quickstart's run")
    run = parser.parse_args().run
    if not run.is_dir():
        train(run)
    draw_curve(run)
    draw_viewer(run)
    print(*(path.relative_to(ROOT) for path in (CURVE, VIEWER, TOP)), sep="\n")


if __name__ == "__main__":
    main()
