"""Curves as text."""

from __future__ import annotations

from agentrl.view.chart import chart, sparkline


def test_a_sparkline() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(1000)], width=40)) == 40


def test_a_chart_rises_from_its_first_value_to_its_last() -> None:
    lines = chart([(0.0, 1.0), (10.0, 3.0)], width=14, height=3)
    assert lines[2] == "          0 10"
    assert lines[0].startswith("    3.000 ")
    assert lines[1].startswith("    1.000 ")
    above, below = lines[0][10:], lines[1][10:]
    assert [cell == chr(0x2800) for cell in above] == [True, True, False, False]
    assert [cell == chr(0x2800) for cell in below] == [False, False, True, True]


def test_a_chart_of_equal_values_or_of_one_is_level() -> None:
    for points in ([(0.0, 2.0), (5.0, 2.0)], [(3.0, 2.0)]):
        drawn = "".join(line[10:] for line in chart(points, width=30, height=4)[:-1])
        assert set(drawn) - {chr(0x2800)}, "something is drawn"
        assert drawn.count(chr(0x2800)) == 60 - (20 if len(points) == 2 else 1)


def test_jumps_are_drawn_without_gaps() -> None:
    points = [(float(k), float(k % 2)) for k in range(40)]
    rows = [line[10:] for line in chart(points, width=30, height=5)[:-1]]
    assert all(chr(0x2800) not in row for row in rows)
