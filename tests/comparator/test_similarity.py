"""The measure itself: cosine by rows, clipped, and what happens to outputs that don't fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from node.comparator.similarity import mean_cosine, similarity


def _embedding(rows: list[list[float]], name: str = "embedding") -> list[dict[str, Any]]:
    data = [value for row in rows for value in row]
    return [{"name": name, "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": data}]


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        ([[1.0, 0.0]], [[2.0, 0.0]], 1.0),
        ([[1.0, 0.0]], [[0.0, 1.0]], 0.0),
        ([[1.0, 0.0]], [[-1.0, 0.0]], 0.0),
        ([[1.0, 0.0]], [[1.0, 1.0]], 0.7071067811865475),
        ([[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], 0.5),
        ([[0.0, 0.0]], [[0.0, 0.0]], 1.0),
        ([[0.0, 0.0]], [[1.0, 0.0]], 0.0),
        ([[1e38, 0.0]], [[1e-38, 0.0]], 1.0),
    ],
)
def test_mean_cosine(left: list[list[float]], right: list[list[float]], wanted: float) -> None:
    assert mean_cosine(np.array(left), np.array(right)) == pytest.approx(wanted)


def test_an_embedding_is_compared_before_any_other_output() -> None:
    other = _embedding([[1.0, 0.0]], "a_score")
    assert similarity(_embedding([[1.0, 0.0]]) + other, other + _embedding([[0.0, 1.0]])) == 0.0


def test_probabilities_are_compared_before_labels() -> None:
    def answer(p: float, label: str) -> list[dict[str, Any]]:
        labels = {"name": "label", "datatype": "BYTES", "shape": [1], "data": [label]}
        return [labels, *_embedding([[p, 1 - p]], "probabilities")]

    assert similarity(answer(0.5, "a"), answer(0.5, "b")) == pytest.approx(1.0)


def test_texts_alone_are_compared_by_equality() -> None:
    def answer(*labels: str) -> list[dict[str, Any]]:
        return [{"name": "label", "datatype": "BYTES", "shape": [len(labels)], "data": list(labels)}]

    assert similarity(answer("a", "b", "c", "d"), answer("a", "b", "c", "x")) == 0.75


def test_other_shapes_and_names_are_not_alike() -> None:
    assert similarity(_embedding([[1.0, 0.0]]), _embedding([[1.0, 0.0, 0.0]])) == 0.0
    assert similarity(_embedding([[1.0, 0.0]]), _embedding([[1.0, 0.0]], "vector")) == 0.0
    assert similarity(_embedding([[1.0, 0.0]]), []) == 0.0
