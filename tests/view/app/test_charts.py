"""The charts of a run, in real Chromium: what they mark, their axes, and their size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.store import RunDir
from agentrl.view.web.server import ViewServer
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served

pytestmark = [pytest.mark.slow, pytest.mark.family("screens")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    """A warm start of 400 steps, 40 iterations and three evaluations; beside it a run of large numbers."""
    folder = tmp_path_factory.mktemp("trained")
    with RunDir.create(folder / "run", {"recipe": {"name": "house"}}) as run:
        run.add(make_episode("train/000000-first#0", split="train"))
        for step in range(10, 401, 10):
            run.add_metrics({"stage": "warm_start", "split": "sft", "iteration": step, "loss": 6 - step / 100})
        for k in range(1, 41):
            run.add_metrics({"stage": "rl", "split": "train", "iteration": k, "success": 0.9, "failed": 0, "loss": 0.1})
        for k in (1, 20, 40):
            run.add_metrics({"stage": "rl", "split": "eval", "iteration": k, "success": 0.12 + k / 100})
    with RunDir.create(folder / "other", {"recipe": {"name": "house"}}) as run:
        run.add(make_episode("train/000000-first#0", split="train"))
        for k in range(1, 41):
            run.add_metrics({"iteration": k, "success": 0.5, "tokens": 27_500 + 100 * k})
        run.add_metrics({"iteration": 40, "measured_once": 7})
    with served(folder, folder / "cache") as server:
        yield server


@pytest.fixture
def page(chromium: Any, trained: ViewServer) -> Iterator[Screen]:
    with chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light") as context:
        yield Screen(context.new_page(), trained.url)


def test_the_headline_says_from_what_to_what(page: Screen) -> None:
    page.go("run", "run", "overview").holds(".headlines", "success")
    told = page.page.locator(".headlines > div").all_inner_texts()
    assert [" ".join(line.split()) for line in told] == [
        "success 0.9 → 0.9",
        "eval/success 0.13 → 0.52",
        "warm_start/loss 5.9 → 2",
    ]
    page.is_clean()


def test_evaluations_are_marked_at_their_points(page: Screen) -> None:
    page.go("run", "run", "overview").holds(".chart .legend", "eval 0.52")
    page.until("() => document.querySelector('canvas')")
    assert page.page.evaluate(MARKERS, ["success", "--c2"]) == 3
    assert page.page.evaluate(MARKERS, ["success", "--c1"]) == 0


def test_a_warm_start_has_charts_of_its_own_in_steps(page: Screen) -> None:
    page.go("run", "run", "overview").holds(".charts .chart h2", "warm_start: loss")
    box = page.page.locator(".chart", has_text="warm_start: loss").locator(".u-over")
    box.hover()
    page.holds(".chart .value", "step 2").is_clean()


def test_charts_follow_the_window(page: Screen) -> None:
    page.page.set_viewport_size({"width": 600, "height": 800})  # one wide chart a line
    page.go("run", "run", "overview").holds(".chart canvas")
    for width in (1280, 600, 1600, 800):
        page.page.set_viewport_size({"width": width, "height": 800})
        page.until(f"() => innerWidth === {width} && ({BEYOND})() === 0")
    assert page.wrong == []


def test_curves_are_smoothed_found_and_enlarged(page: Screen) -> None:
    page.go("run", "run", "overview").holds(".chart h2", "warm_start: loss")
    smoothed = "async ([points, weight]) => (await import('app/chart')).smoothed(points, weight)"
    assert page.page.evaluate(smoothed, [[[0, 1], [1, 1], [2, None]], 0.9]) == [[0, 1], [1, 1], [2, None]]
    assert page.page.evaluate(smoothed, [[[0, 0], [1, 1]], 0.5]) == [[0, 0], [1, pytest.approx(2 / 3)]]
    loss = page.page.locator(".chart", has_text="warm_start: loss")
    assert loss.locator(".value").inner_text() == "2"
    page.page.get_by_label("smoothing").select_option("strong smoothing")
    page.until("() => location.hash.includes('smooth=0.9')").holds(".chart:has-text('warm_start: loss') .value", "2.8")
    page.page.get_by_label("find a metric").fill("Warm")
    page.until("() => document.querySelectorAll('.chart canvas').length === 1")
    page.page.get_by_label("enlarge warm_start: loss").click()
    page.until("() => document.querySelector('.chart.large canvas').getBoundingClientRect().height > 300")
    page.until(f"() => ({BEYOND})() === 0").is_clean()


def test_axes_are_readable(page: Screen) -> None:
    page.go("run", "run", "compare", query="?with=other").holds(".chart", "tokens").holds(".legend", "B not recorded")
    ends = "async ([low, high]) => (await import('app/chart')).ends(low, high)"
    assert page.page.evaluate(ends, [0, 0]) == [0, 1]
    assert page.page.evaluate(ends, [2, 2]) == [pytest.approx(1.8), pytest.approx(2.2)]
    low, high = page.page.evaluate(ends, [0.2, 0.9])
    assert low <= 0.2 < 0.9 <= high
    labels = "async ([splits, step]) => (await import('app/chart')).ticks(splits, step)"
    assert page.page.evaluate(labels, [[0, 0.25, 0.5], 0.25]) == ["0", "0.25", "0.5"]
    assert page.page.evaluate(labels, [[27_500, 28_000], 500]) == ["27.5k", "28k"]
    assert page.page.evaluate(labels, [[1.00001, 1.00002], 0.00001]) == ["1.00001", "1.00002"]
    assert page.page.evaluate(labels, [[0, 2e-6], 2e-6]) == ["0", "2e-6"]
    assert page.page.evaluate(labels, [[0, 2_000_000], 1_000_000]) == ["0", "2M"]


def test_one_value_is_a_figure_and_no_curve(page: Screen) -> None:
    page.go("run", "run", "compare", query="?with=other").sees("Metrics with one value").holds("td", "measured_once")
    assert page.page.locator(".chart", has_text="measured_once").count() == 0
    page.is_clean()


def test_two_runs_keep_their_colours(page: Screen) -> None:
    page.go("run", "run", "compare", query="?with=other").holds(".chart", "tokens")
    page.until("() => document.querySelectorAll('canvas').length > 2")
    assert page.page.evaluate(PIXELS, ["tokens", "--c1"]) == 0
    assert page.page.evaluate(PIXELS, ["tokens", "--c2"]) > 0
    page.is_clean()


_COLUMNS = """
  const card = [...document.querySelectorAll('.chart')].find((one) => one.querySelector('h2').innerText === title);
  const canvas = card.querySelector('canvas'), { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const pixels = copy.getImageData(0, 0, width, height).data;
  const value = getComputedStyle(document.documentElement).getPropertyValue(colour).trim().slice(1);
  const wanted = [0, 2, 4].map((at) => parseInt(value.slice(at, at + 2), 16));
  const columns = Array.from({ length: width }, (_, x) => {
    let longest = 0, run = 0;
    for (let y = 0; y < height; y += 1) {
      const at = 4 * (y * width + x);
      const same = pixels[at + 3] > 200 && wanted.every((c, k) => Math.abs(pixels[at + k] - c) < 12);
      run = same ? run + 1 : 0;
      longest = Math.max(longest, run);
    }
    return longest;
  });
"""
MARKERS = f"""([title, colour]) => {{ {_COLUMNS}
  return columns.filter((n, x) => n >= 5 && !(columns[x - 1] >= 5)).length; }}"""
"""The number of round marks of a colour in a chart: columns of pixels higher than a line is thick."""
PIXELS = f"([title, colour]) => {{ {_COLUMNS} return columns.filter((n) => n > 0).length; }}"
BEYOND = """() => {
  const charts = [...document.querySelectorAll('.chart .uplot')];
  const page = Math.max(0, document.documentElement.scrollWidth - innerWidth);
  return Math.max(page, ...charts.map((chart) => Math.abs(chart.offsetWidth - chart.parentElement.clientWidth)));
}"""
"""The pixels by which a chart differs from its place, or the page is wider than its window."""
