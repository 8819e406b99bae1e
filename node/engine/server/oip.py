"""The Open Inference Protocol's JSON: requests checked against a model's ports, responses made of its outputs.

Every refusal is a RequestError with a stable code; nothing of a request is used before it is checked.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from node.engine.errors import RequestError
from node.engine.model import NUMPY_OF, OIP_OF, Port

MAX_ID_CHARS = 128


@dataclass(frozen=True)
class InferRequest:
    """A checked request: inputs by name as arrays (n, …) or lists of n strings, and the outputs that are wanted."""

    id: str
    inputs: Mapping[str, Any]
    items: int
    outputs: tuple[str, ...]
    sha256: bytes


def parse(body: bytes, inputs: Sequence[Port], outputs: Sequence[Port], *, max_items: int) -> InferRequest:
    """Check a request's body. `outputs` of the result are all of the model's where the client names none."""
    document = _load(body)
    identity = document.get("id", "")
    if not isinstance(identity, str) or len(identity) > MAX_ID_CHARS or not _is_encodable(identity):
        raise RequestError(400, "bad_id", f"The request's id must be text of at most {MAX_ID_CHARS} characters.")
    given = _by_name(document.get("inputs"), inputs)
    digest = hashlib.sha256()
    values = {port.name: _value(port, given[port.name], max_items, digest) for port in inputs}
    counts = {len(value) for value in values.values()}
    if len(counts) != 1:
        raise RequestError(400, "wrong_shape", "The inputs have different numbers of items in their first dimension.")
    return InferRequest(identity, values, counts.pop(), _wanted(document.get("outputs"), outputs), digest.digest())


def _load(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise RequestError(400, "bad_json", "The request's body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(400, "bad_json", f"The request's body is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise RequestError(400, "bad_json", "The request's body must be a JSON object with a list of inputs.")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _by_name(given: Any, ports: Sequence[Port]) -> dict[str, dict[str, Any]]:
    """The request's inputs by name: exactly the model's."""
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise RequestError(400, "missing_input", "The request has no list of inputs.")
    known = {port.name for port in ports}
    found: dict[str, dict[str, Any]] = {}
    for item in given:
        name = item.get("name")
        if not isinstance(name, str) or name not in known:
            wanted = ", ".join(sorted(known))
            raise RequestError(400, "unknown_input", f"The model has no input {str(name)[:80]!r}; it takes {wanted}.")
        if name in found:
            raise RequestError(400, "duplicate_input", f"The input {name!r} is given twice.")
        found[name] = item
    for name in known - found.keys():
        raise RequestError(400, "missing_input", f"The input {name!r} is missing.")
    return found


def _value(port: Port, item: Mapping[str, Any], max_items: int, digest: hashlib._Hash) -> Any:
    if item.get("datatype") != port.datatype:
        given = str(item.get("datatype"))[:80]
        raise RequestError(400, "wrong_datatype", f"Input {port.name!r} is {given!r}; the model takes {port.datatype}.")
    shape = _shape(port, item.get("shape"))
    if shape[0] > max_items:
        sentence = f"The request has {shape[0]} items, at most {max_items} fit into one: send several requests."
        raise RequestError(413, "too_many_items", sentence)
    data = _flatten(port, item.get("data"), math.prod(shape))
    value = _texts(port, data, shape) if port.datatype == "BYTES" else _numbers(port, data).reshape(shape)
    # the hash names the input whatever way its JSON was written
    digest.update(f"{port.name}\0{port.datatype}\0{shape}\0".encode())
    if isinstance(value, list):
        for text in value:
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
    else:
        digest.update(value.tobytes())
    return value


def _shape(port: Port, shape: Any) -> tuple[int, ...]:
    wanted = str(list(port.shape)).replace("-1", "n")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise RequestError(400, "wrong_shape", f"Input {port.name!r} needs a shape, a list of sizes like {wanted}.")
    fits = len(shape) == len(port.shape) and all(
        size == want or want == -1 for size, want in zip(shape, port.shape, strict=True)
    )
    if not fits or math.prod(shape) == 0:
        sentence = f"Input {port.name!r} has the shape {str(shape)[:80]}; the model takes {wanted}, n at least 1."
        raise RequestError(400, "wrong_shape", sentence)
    return tuple(shape)


def _flatten(port: Port, data: Any, count: int) -> list[Any]:
    """The data as one flat list of `count` values; the protocol allows nested lists too."""
    flat = data if isinstance(data, list) else []
    while flat and type(flat[0]) is list:
        if not all(type(part) is list for part in flat):
            raise RequestError(400, "wrong_shape", f"Input {port.name!r} mixes values and lists.")
        flat = [value for part in flat for value in part]
    if not isinstance(data, list) or len(flat) != count:
        raise RequestError(400, "wrong_shape", f"Input {port.name!r} must have {count} values, as its shape says.")
    return flat


def _texts(port: Port, data: list[Any], shape: tuple[int, ...]) -> list[str]:
    if len(shape) != 1:
        raise RequestError(400, "wrong_shape", f"Input {port.name!r} takes texts in one dimension.")
    for index, text in enumerate(data):
        if type(text) is not str:
            raise RequestError(400, "not_text", f"Item {index} of input {port.name!r} is not a string.")
        if not text.isascii() and not _is_encodable(text):
            raise RequestError(400, "not_text", f"Item {index} of input {port.name!r} holds half a surrogate pair.")
    return data


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _numbers(port: Port, data: list[Any]) -> np.ndarray:
    dtype = np.dtype(NUMPY_OF[port.datatype])
    allowed = {bool} if dtype.kind == "b" else {int, float} if dtype.kind == "f" else {int}
    if not set(map(type, data)) <= allowed:
        sentence = f"Input {port.name!r} holds values that are no {port.datatype} numbers."
        raise RequestError(400, "wrong_datatype", sentence)
    try:
        with np.errstate(over="ignore"):
            values = np.array(data, dtype)
    except OverflowError:
        raise RequestError(400, "out_of_range", f"Input {port.name!r} holds a number too large for it.") from None
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise RequestError(400, "out_of_range", f"Input {port.name!r} holds a number too large for {port.datatype}.")
    return values


def _wanted(given: Any, ports: Sequence[Port]) -> tuple[str, ...]:
    names = tuple(port.name for port in ports)
    if given is None:
        return names
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise RequestError(400, "bad_outputs", "The wanted outputs must be a list of objects with a name.")
    for item in given:
        if item.get("name") not in names:
            name = str(item.get("name"))[:80]
            raise RequestError(400, "unknown_output", f"The model has no output {name!r}; it has {', '.join(names)}.")
    return tuple(item["name"] for item in given)


def render_output(name: str, value: np.ndarray | list[str]) -> dict[str, Any]:
    """One output as the protocol writes it, row-major; raises RequestError 500 `not_finite` on NaN or infinity."""
    if isinstance(value, list):
        return {"name": name, "datatype": "BYTES", "shape": [len(value)], "data": value}
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        sentence = f"The model's output {name!r} is not finite for this input."
        raise RequestError(500, "not_finite", sentence)
    return {"name": name, "datatype": OIP_OF[value.dtype], "shape": list(value.shape), "data": value.ravel().tolist()}


def describe(model: str, version: int, inputs: Sequence[Port], outputs: Sequence[Port]) -> dict[str, Any]:
    """A model's metadata as the protocol writes it."""

    def ports(items: Sequence[Port]) -> list[dict[str, Any]]:
        return [{"name": item.name, "datatype": item.datatype, "shape": list(item.shape)} for item in items]

    return {
        "name": model,
        "versions": [str(version)],
        "platform": "aifb",
        "inputs": ports(inputs),
        "outputs": ports(outputs),
    }
