"""From the graph's outputs to a request's public outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aifb import metadata_pb2 as pb
from aifb.reader import Artifact
from node.engine.errors import LoadError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Outputs:
    """Public outputs of a batch by name: arrays (b, …) or lists of b strings.

    `entropy` (bits) and `score` (top probability) are (b,) where the outputs are a distribution, else None; `labels`
    likewise.
    """

    values: Mapping[str, Array | list[str]]
    entropy: Array | None = None
    score: Array | None = None
    labels: list[str] | None = None


class Postprocess(Protocol):
    """Makes `Outputs` of the graph's outputs, numpy arrays (b, …) by name."""

    def __call__(self, outputs: Mapping[str, Array]) -> Outputs: ...


class Identity:
    """Graph outputs are public outputs."""

    def __call__(self, outputs: Mapping[str, Array]) -> Outputs:
        return Outputs(outputs)


class Classify:
    """Softmax over the logits' last dimension, the likeliest label, Shannon entropy in bits."""

    def __init__(self, artifact: Artifact, params: Mapping[str, str]) -> None:
        try:
            self._logits, self._probabilities, self._label = params["logits"], params["probabilities"], params["label"]
            labels = json.loads(artifact.asset(params["asset"]))
        except KeyError as error:
            raise LoadError("bad_step", f"The classify step lacks its parameter {error}.") from error
        except ValueError as error:
            raise LoadError("bad_step", f"The classify step's labels are not JSON: {error}.") from error
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise LoadError("bad_step", "The classify step's labels must be a JSON list of strings.")
        self._labels: list[str] = labels

    def __call__(self, outputs: Mapping[str, Array]) -> Outputs:
        logits = outputs[self._logits].astype(np.float64)  # (b, classes)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = weights / weights.sum(axis=-1, keepdims=True)
        # 0 · log 0 is 0 in an entropy
        logs = np.log2(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
        top = probabilities.argmax(axis=-1)  # (b,)
        labels = [self._labels[index] for index in top]
        values: dict[str, Array | list[str]] = {
            self._probabilities: probabilities.astype(np.float32),
            self._label: labels,
        }
        return Outputs(values, -(probabilities * logs).sum(axis=-1), probabilities.max(axis=-1), labels)


def make_postprocess(artifact: Artifact, step: pb.Step) -> Postprocess:
    """The step of that kind; raises LoadError `bad_step`."""
    if step.kind == "none":
        return Identity()
    if step.kind == "classify":
        return Classify(artifact, step.params)
    raise LoadError("bad_step", f"The postprocess step {step.kind!r} is unknown to this engine.")
