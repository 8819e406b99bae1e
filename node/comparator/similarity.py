"""How alike two answers are, by the kind of their outputs: a number from 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# What says most about a model's answer goes first; any other output is compared when neither is there.
_PREFERRED = ("embedding", "probabilities")
_FLOATS = {"FP16", "FP32", "FP64", "BF16"}

Output = Mapping[str, Any]


def similarity(baseline: list[Output], candidate: list[Output]) -> float:
    """Mean over the rows of the cosine between the two versions' outputs, clipped at 0; for texts the share of equals.

    Arguments are the `outputs` of two Open Inference Protocol responses. Outputs that don't fit together (other shape,
    other names) are 0: nothing of them is alike. Cosine: u·v / (|u| |v|).
    """
    left, right = _by_name(baseline), _by_name(candidate)
    for name in _order(left):
        if name not in right:
            continue
        if left[name]["shape"] != right[name]["shape"] or left[name]["datatype"] != right[name]["datatype"]:
            return 0.0
        if left[name]["datatype"] in _FLOATS:
            return mean_cosine(_rows(left[name]), _rows(right[name]))
        return float(np.mean([a == b for a, b in zip(left[name]["data"], right[name]["data"], strict=True)]))
    return 0.0


def mean_cosine(left: np.ndarray, right: np.ndarray) -> float:
    """Mean over rows of max(0, cosine); both are (n, d). Two zero rows are alike, one alone is not."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)  # (n,)
    both_zero = ~left.any(axis=1) & ~right.any(axis=1)
    cosines = np.where(both_zero, 1.0, (left * right).sum(axis=1) / np.where(lengths > 0, lengths, 1.0))
    return float(np.clip(cosines, 0.0, 1.0).mean())


def _by_name(outputs: list[Output]) -> dict[str, Output]:
    return {output["name"]: output for output in outputs}


def _order(outputs: Mapping[str, Output]) -> list[str]:
    preferred = [name for name in _PREFERRED if name in outputs]
    others = sorted(outputs, key=lambda name: (outputs[name]["datatype"] not in _FLOATS, name))
    return list(dict.fromkeys([*preferred, *others]))


def _rows(output: Output) -> np.ndarray:
    """The flat data as (n, everything else)."""
    return np.asarray(output["data"], np.float64).reshape(output["shape"][0], -1)
