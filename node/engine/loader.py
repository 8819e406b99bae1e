"""From an open file to something that computes: verify and map it, point tensors into the map, build the plan.

The bytes that are verified are the bytes that are mapped: the same open file, never its path.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from aifb import metadata_pb2 as pb
from aifb.reader import Artifact, open_artifact
from node.engine.compiler.plan import Plan, compile_graph
from node.engine.dtypes import torch_dtype
from node.engine.errors import LoadError
from node.engine.memory.arena import WeightArena, padded
from node.engine.sandbox.seal import protect
from node.engine.timing import StepTimer


@dataclass(frozen=True)
class Loaded:
    """An artifact that is ready to run; it keeps map and arena alive. `is_sealed`: nobody can patch the weights."""

    artifact: Artifact
    plan: Plan
    tensors: Mapping[str, torch.Tensor]
    arena: WeightArena | None
    is_sealed: bool


def load(fd: int, *, digest: str, threads: int = 1, timer: StepTimer | None = None, seal: bool = True) -> Loaded:
    """Load the artifact in the open file `fd` (which stays the caller's) if its root is `digest` (128 hex characters).

    Weights are views into the read-only map; int8 weights are turned into what the graph computes with, once. With
    `seal` they can't be changed or unmapped until the process ends. Raises aifb.errors.AifbError for a file that isn't
    what it should be, LoadError for one that this engine can't run.
    """
    timer = timer or StepTimer()
    with timer.step("verify_and_map"):
        artifact = open_artifact(fd, expected_root=bytes.fromhex(digest), threads=threads)
    names = _tensors_of(artifact.metadata.graph.nodes)
    with timer.step("weights"):
        tensors, arena = _weights(artifact, names)
    with timer.step("seal"):
        is_sealed = _seal(artifact, arena) if seal else False
    with timer.step("plan"):
        plan = compile_graph(artifact.metadata.graph, tensors)
    return Loaded(artifact, plan, tensors, arena, is_sealed)


def _tensors_of(nodes: Iterable[pb.Node]) -> list[str]:
    """Names of the weights that the graph uses, each once, in order of first use."""
    found: dict[str, None] = {}

    def visit(arg: pb.Arg) -> None:
        kind = arg.WhichOneof("kind")
        if kind == "tensor":
            found[arg.tensor] = None
        elif kind == "list":
            for item in arg.list.items:
                visit(item)

    for node in nodes:
        for arg in (*node.args, *(named.arg for named in node.kwargs)):
            visit(arg)
    return list(found)


def _weights(artifact: Artifact, names: list[str]) -> tuple[dict[str, torch.Tensor], WeightArena | None]:
    # an alias is the same tensor under another name: one tensor object for both
    targets = {name: artifact.tensor(name).name for name in names}
    quantised = [name for name in dict.fromkeys(targets.values()) if artifact.quantisation(name) is not None]
    size = sum(padded(_logical_bytes(artifact, name)) for name in quantised)
    arena = WeightArena(size) if quantised else None
    ready: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys(targets.values()):
        if arena is not None and artifact.quantisation(name) is not None:
            ready[name] = _dequantise(artifact, name, arena)
        else:
            ready[name] = _mapped(artifact, name)
    return {name: ready[target] for name, target in targets.items()}, arena


def _logical_bytes(artifact: Artifact, name: str) -> int:
    quantisation = artifact.quantisation(name)
    dtype = torch_dtype(quantisation.logical_dtype if quantisation else 0, f"Tensor {name!r}")
    return math.prod(artifact.tensor(name).shape) * dtype.itemsize


def _mapped(artifact: Artifact, name: str) -> torch.Tensor:
    """A tensor whose bytes stay in the map."""
    entry = artifact.tensor(name)
    dtype, shape = torch_dtype(entry.dtype, f"Tensor {name!r}"), tuple(entry.shape)
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        # torch warns that it can't mark a tensor read-only; the map itself is, a write would be a fault, and the op
        # table has nothing that writes to an argument
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(artifact.tensor_bytes(name), dtype=dtype).view(shape)


def _dequantise(artifact: Artifact, name: str, arena: WeightArena) -> torch.Tensor:
    """value = stored integer · scale, with one scale per index of an axis or one for all; float32 arithmetic."""
    quantisation = artifact.quantisation(name)
    assert quantisation is not None  # noqa: S101 - asked for quantised tensors only
    stored = _mapped(artifact, name)
    if stored.dtype != torch.int8:
        raise LoadError("unsupported_quantisation", f"Tensor {name!r} stores {stored.dtype}; this engine reads int8.")
    scale = _mapped(artifact, quantisation.scale_tensor)
    if quantisation.scheme == pb.Quantisation.PER_ROW:
        scale = scale.view([-1 if axis == quantisation.axis else 1 for axis in range(stored.dim())])
    elif quantisation.scheme != pb.Quantisation.PER_TENSOR:
        raise LoadError("unsupported_quantisation", f"Tensor {name!r} has the unknown scheme {quantisation.scheme}.")
    logical = torch_dtype(quantisation.logical_dtype, f"Tensor {name!r}")
    target = arena.tensor(tuple(stored.shape), logical)
    if logical == torch.float32:
        torch.mul(stored, scale, out=target)
    else:
        target.copy_(stored * scale)
    return target


def _seal(artifact: Artifact, arena: WeightArena | None) -> bool:
    """Protect the map and the arena; True if the kernel sealed both."""
    sealed = []
    entry = next((tensor for tensor in artifact.metadata.tensors if tensor.length), None)
    if entry is not None:
        address = np.frombuffer(artifact.tensor_bytes(entry.name), np.uint8).ctypes.data
        start = address - artifact.header.data_offset - entry.offset
        sealed.append(protect(start, artifact.header.total_bytes))
    if arena is not None:
        sealed.append(protect(*arena.span))
    return all(sealed)
