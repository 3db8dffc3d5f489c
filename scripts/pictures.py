"""Draws the pictures of the README: the quickstart's learning curve, from a stored run.

python scripts/pictures.py                       # trains the quickstart into build/pictures/quickstart, then draws
python scripts/pictures.py --run runs/quickstart # draws a run that is there
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from agentrl.store.run_dir import RunDir
from agentrl.view.curves import learning_curve

ROOT = Path(__file__).resolve().parents[1]
CURVE = ROOT / "docs" / "pictures" / "curve.png"


def draw_curve(run: Path, out: Path = CURVE) -> None:
    """Draws the success of a stored quickstart, by iteration.

    Raises:
        StoreError: there is no run, or it has no iteration yet.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with RunDir.read(run) as stored:
        trained = [line for line in stored.metrics() if line["split"] == "train"]
    learning_curve(trained, out, title="quickstart: eight mazes, 64 episodes an iteration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", type=Path, default=ROOT / "build" / "pictures" / "quickstart", help="a quickstart's run"
    )
    run = parser.parse_args().run
    if not run.is_dir():
        subprocess.run([sys.executable, "-m", "agentrl.cli", "quickstart", "--out", str(run)], check=True)
    draw_curve(run)
    print(CURVE.relative_to(ROOT))


if __name__ == "__main__":
    main()
