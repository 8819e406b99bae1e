"""Where intervals, margins and bars lie in the evidence page's figures."""

from __future__ import annotations

import pytest

from apps.rollouts import figures


def test_interval_keeps_the_order_of_its_points() -> None:
    drawn = figures.interval(0.985, 0.995, 0.99, 0.98, "higher")
    assert drawn is not None
    assert drawn.margin is not None
    assert drawn.estimate is not None
    assert 8.0 < drawn.margin < drawn.low < drawn.estimate < drawn.high < 212.0
    assert drawn.zone == (8.0, pytest.approx(drawn.margin - 8.0, abs=0.11))


def test_failing_side_lies_right_when_lower_is_better() -> None:
    drawn = figures.interval(-0.01, 0.004, 0.0, 0.01, "lower")
    assert drawn is not None
    assert drawn.zone is not None
    assert drawn.zone[0] == drawn.margin
    assert sum(drawn.zone) == pytest.approx(212.0)


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_a_point_is_an_interval_too(value: float) -> None:
    drawn = figures.interval(value, value, value, None, "higher")
    assert drawn is not None
    assert drawn.low == drawn.high == drawn.estimate == pytest.approx(110.0)
    assert drawn.zone is None


@pytest.mark.parametrize(("low", "high"), [(None, None), (0.1, None), (None, 0.1)])
def test_no_interval_no_figure(low: float | None, high: float | None) -> None:
    assert figures.interval(low, high, 0.1, 0.2, "higher") is None


def test_histogram_cuts_what_is_empty_below_and_marks_the_failing_side() -> None:
    edges = [0.0, 0.9, 0.95, 0.97, 0.98, 0.99, 1.0]
    drawn = figures.histogram({"edges": edges, "counts": [0, 0, 2, 0, 4, 8]}, 0.98)
    assert drawn is not None
    assert [bar.count for bar in drawn.bars] == [2, 0, 4, 8]
    assert [bar.below for bar in drawn.bars] == [True, True, False, False]
    assert drawn.bars[-1].height == 60.0
    assert drawn.bars[1].height == 0.0
    assert drawn.margin == pytest.approx(380.0, abs=4)
    assert [tick.text for tick in drawn.ticks] == ["0.95", "1.00", "0.98"]


def test_histogram_keeps_the_bin_of_all_that_lies_far_below() -> None:
    drawn = figures.histogram({"edges": [0.0, 0.9, 0.95, 1.0], "counts": [3, 0, 1]}, 0.98)
    assert drawn is not None
    assert drawn.bars[0].label == "0 to 0.9"
    assert len({bar.width for bar in drawn.bars}) == 1


@pytest.mark.parametrize("data", [None, {}, {"edges": [], "counts": []}, {"edges": [0, 1], "counts": [0]},
                                  {"edges": [0, 1], "counts": [1, 2]}, "text"])  # fmt: skip
def test_nothing_to_draw(data: object) -> None:
    assert figures.histogram(data, 0.98) is None
