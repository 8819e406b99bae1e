"""How the console says times, sizes and quantities."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from apps.lib.shapes import ICONS, STATES
from apps.lib.templatetags import farrier


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "just now"), (-4, "just now"), (59, "59 s ago"), (60, "1 min ago"), (3_599, "59 min ago"), (3_600, "1 h ago"),
     (13_680, "3 h 48 min ago"), (-13_680, "in 3 h 48 min"), (36_000, "10 h ago"), (200_000, "2 d ago")],
)  # fmt: skip
def test_times(seconds: float, said: str) -> None:
    assert farrier.spoken(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (23_100_000, "23.1 MB"), (999_999, "1.0 MB"), (None, "–"),
     (90_900_000, "90.9 MB"), (123_000_000_000, "123 GB")],
)  # fmt: skip
def test_sizes(count: int | None, said: str) -> None:
    assert farrier.size(count) == said


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(None, "ms", "–"), (41.83, "ms", "41.8 ms"), (412.3, "ms", "412 ms"), (0.0004, "share", "0.04 %"),
     (1.0, "share", "100 %"), (0.9981, "", "0.9981"), (0.5, "", "0.500"), (5.13, "bits", "5.1 bits")],
)  # fmt: skip
def test_quantities(value: float | None, unit: str, said: str) -> None:
    assert farrier.quantity(value, unit) == said


def test_digests_are_short_and_keep_the_whole_in_their_title() -> None:
    html = farrier.digest("9f3a" + "0" * 121 + "c21")
    assert "9f3a…c21" in html
    assert "0" * 121 in html
    assert farrier.digest("") == "–"


def test_texts_are_escaped() -> None:
    assert "<script>" not in farrier.state("paused", "<script>")
    assert "<script>" not in farrier.digest("<script>")


def test_exact_time_stands_in_the_title() -> None:
    moment = datetime.now(UTC) - timedelta(minutes=3)
    html = farrier.ago(moment)
    assert "3 min ago" in html
    assert moment.strftime("%Y-%m-%d %H:%M:%S UTC") in html


def test_every_state_has_a_shape() -> None:
    assert all(shape in ICONS for shape, _, _ in STATES.values())
