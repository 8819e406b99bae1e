"""From a request's public inputs to one set of graph inputs per row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from aifb import metadata_pb2 as pb
from aifb.reader import Artifact
from node.engine.errors import LoadError

Row = dict[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Prepared:
    """Rows ready for the graph, each a set of arrays without the batch dimension.

    `tokens` counts what the tokenizer made; `is_truncated`: some text was longer than the model reads.
    """

    rows: list[Row]
    tokens: int = 0
    is_truncated: bool = False


class Preprocess(Protocol):
    """`padding`: graph inputs whose last dimension may be filled up with a value, so that rows of a batch match."""

    padding: Mapping[str, int]

    def __call__(self, inputs: Mapping[str, Any]) -> Prepared:
        """Public inputs by name: arrays (n, …), or lists of n strings."""


class PassThrough:
    """Public inputs are the graph's inputs."""

    padding: Mapping[str, int] = {}

    def __call__(self, inputs: Mapping[str, Any]) -> Prepared:
        names = list(inputs)
        count = len(inputs[names[0]])
        return Prepared([{name: inputs[name][index] for name in names} for index in range(count)])


class Tokenize:
    """A BYTES input becomes token ids and an attention mask; texts are cut at the model's longest sequence."""

    def __init__(self, artifact: Artifact, params: Mapping[str, str]) -> None:
        try:
            self._input, self._ids, self._mask = params["input"], params["ids"], params["mask"]
            max_length, pad_id = int(params["max_length"]), int(params["pad_id"])
            self._tokenizer = Tokenizer.from_buffer(artifact.asset(params["asset"]))
        except KeyError as error:
            raise LoadError("bad_step", f"The tokenize step lacks its parameter {error}.") from error
        except ValueError as error:
            raise LoadError("bad_step", f"The tokenize step can't be set up: {error}.") from error
        # rows are padded per batch, to the longest row of that batch
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self.padding: Mapping[str, int] = {self._ids: pad_id, self._mask: 0}

    def __call__(self, inputs: Mapping[str, Any]) -> Prepared:
        encodings = self._tokenizer.encode_batch_fast(inputs[self._input])
        rows: list[Row] = []
        tokens, is_truncated = 0, False
        for encoding in encodings:
            ids = np.array(encoding.ids, np.int64)  # (t,)
            rows.append({self._ids: ids, self._mask: np.array(encoding.attention_mask, np.int64)})
            tokens += len(ids)
            is_truncated = is_truncated or bool(encoding.overflowing)
        return Prepared(rows, tokens, is_truncated)


def make_preprocess(artifact: Artifact, step: pb.Step) -> Preprocess:
    """The step of that kind; raises LoadError `bad_step`."""
    if step.kind == "none":
        return PassThrough()
    if step.kind == "tokenize":
        return Tokenize(artifact, step.params)
    raise LoadError("bad_step", f"The preprocess step {step.kind!r} is unknown to this engine.")
