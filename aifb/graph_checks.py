"""Checks of the graph and the entry points: allow-listed ops, every reference to something defined before it."""

import re
from collections.abc import Container, Iterable, Mapping

from aifb import dtypes
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.ops import ALLOWED_OPS

MAX_NODES = 65_536
MAX_DEPTH = 4  # of lists inside an argument
MAX_DIMS = 8
MAX_PARAMS = 64

PREPROCESS_KINDS = frozenset({"none", "tokenize"})
POSTPROCESS_KINDS = frozenset({"none", "classify"})
# The datatypes of the Open Inference Protocol, version 2.
DATATYPES = frozenset(
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 BYTES".split()  # noqa: SIM905
)

_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_SDPA = "aten.scaled_dot_product_attention.default"


def check_graph(graph: pb.Graph, tensors: Container[str]) -> None:
    """Check a graph against the names of the artifact's tensors.

    Raises AifbError: too_many, bad_name, duplicate_name, unknown_dtype, unknown_op, bad_graph, dangling_reference.
    """
    if len(graph.nodes) > MAX_NODES or len(graph.inputs) + len(graph.outputs) + len(graph.symbols) > MAX_NODES:
        raise AifbError("too_many", f"The graph has more than {MAX_NODES} nodes, inputs, outputs or symbols.")
    symbols: set[str] = set()
    for symbol in graph.symbols:
        _define(symbol.name, symbols, "symbol")
        if not 0 <= symbol.min <= symbol.max:
            raise AifbError("bad_graph", f"The symbol {symbol.name!r} has no range: {symbol.min} to {symbol.max}.")
    values: set[str] = set()
    for given in graph.inputs:
        _define(given.name, values, "input")
        _check_dims(f"Input {given.name!r}", given.dtype, given.dims, symbols, fixed=True)
    scope = _Scope(tensors, values, symbols)
    for node in graph.nodes:
        _check_node(node, scope)
    outputs: set[str] = set()
    for output in graph.outputs:
        _define(output.name, outputs, "output")
        _check_dims(f"Output {output.name!r}", output.dtype, output.dims, symbols, fixed=False)
        if output.value not in values:
            raise AifbError(
                "dangling_reference", f"Output {output.name!r} names {output.value[:80]!r}, which nothing makes."
            )


class _Scope:
    """What an argument may refer to at this point of the graph."""

    def __init__(self, tensors: Container[str], values: set[str], symbols: Container[str]) -> None:
        self.values = values
        self.known: Mapping[str, Container[str]] = {"tensor": tensors, "value": values, "symbol": symbols}


def _define(name: str, seen: set[str], kind: str) -> None:
    if not _IDENTIFIER.fullmatch(name):
        raise AifbError("bad_name", f"The {kind} name {name[:80]!r} is not an identifier of at most 255 characters.")
    if name in seen:
        raise AifbError("duplicate_name", f"The {kind} name {name!r} is defined twice.")
    seen.add(name)


def _check_dims(where: str, dtype: int, dims: Iterable[pb.Dim], symbols: Container[str], *, fixed: bool) -> None:
    dtypes.by_number(dtype, where)
    for position, dim in enumerate(dims):
        kind = dim.WhichOneof("kind")
        if position >= MAX_DIMS:
            raise AifbError("bad_shape", f"{where} has more than {MAX_DIMS} dimensions.")
        if kind is None and fixed:
            raise AifbError("bad_graph", f"{where} leaves dimension {position} open: give a size or a symbol.")
        if kind == "symbol" and dim.symbol not in symbols:
            raise AifbError(
                "dangling_reference", f"{where} names the symbol {dim.symbol[:80]!r}, which does not exist."
            )


def _check_node(node: pb.Node, scope: _Scope) -> None:
    if node.op not in ALLOWED_OPS:
        raise AifbError(
            "unknown_op", f"Node {node.name[:80]!r} wants {node.op[:80]!r}, which is not on the allow-list."
        )
    where = f"Node {node.name[:80]!r}"
    for arg in node.args:
        _check_arg(arg, where, scope, 0)
    keywords: set[str] = set()
    for named in node.kwargs:
        _define(named.name, keywords, "argument")
        _check_arg(named.arg, where, scope, 0)
    if node.op == _SDPA:
        _check_no_dropout(node, where)
    if not any(node.outputs):
        raise AifbError("bad_graph", f"{where} makes no value: leave it out.")
    for output in node.outputs:
        if output:
            _define(output, scope.values, "value")


def _check_arg(arg: pb.Arg, where: str, scope: _Scope, depth: int) -> None:
    kind = arg.WhichOneof("kind")
    if kind is None:
        raise AifbError("bad_graph", f"{where} has an argument without a value.")
    if kind in scope.known:
        name = getattr(arg, kind)
        if name not in scope.known[kind]:
            raise AifbError(
                "dangling_reference", f"{where} refers to the {kind} {name[:80]!r}, which is not defined yet."
            )
    elif kind == "dtype":
        dtypes.by_number(arg.dtype, where)
    elif kind == "str_value" and not _WORD.fullmatch(arg.str_value):
        raise AifbError("bad_graph", f"{where} has a text argument that is not one lower-case word.")
    elif kind == "list":
        if depth >= MAX_DEPTH:
            raise AifbError("bad_graph", f"{where} nests lists deeper than {MAX_DEPTH}.")
        for item in arg.list.items:
            _check_arg(item, where, scope, depth + 1)


def _check_no_dropout(node: pb.Node, where: str) -> None:
    """Attention's dropout is the one way to randomness on the allow-list: it must be off."""
    given = [*node.args[4:5], *(named.arg for named in node.kwargs if named.name == "dropout_p")]
    if any(
        arg.WhichOneof("kind") not in ("float_value", "int_value") or arg.float_value or arg.int_value for arg in given
    ):
        raise AifbError("bad_graph", f"{where} asks for dropout: export the model in evaluation mode.")


def check_entry_points(metadata: pb.Metadata, assets: Container[str]) -> None:
    """Check the entry points; raises AifbError: bad_name, duplicate_name, unknown_step, unknown_dtype,
    dangling_reference, too_many, bad_shape."""
    names: set[str] = set()
    for entry in metadata.entry_points:
        _define(entry.name, names, "entry point")
        _check_step(entry.preprocess, PREPROCESS_KINDS, assets)
        _check_step(entry.postprocess, POSTPROCESS_KINDS, assets)
        for ports in (entry.inputs, entry.outputs):
            seen: set[str] = set()
            for port in ports:
                _define(port.name, seen, "port")
                _check_port(port)


def _check_step(step: pb.Step, kinds: frozenset[str], assets: Container[str]) -> None:
    if step.kind not in kinds:
        raise AifbError(
            "unknown_step", f"The step {step.kind[:80]!r} is unknown; known are {', '.join(sorted(kinds))}."
        )
    if len(step.params) > MAX_PARAMS:
        raise AifbError("too_many", f"The step {step.kind!r} has more than {MAX_PARAMS} parameters.")
    if "asset" in step.params and step.params["asset"] not in assets:
        raise AifbError("dangling_reference", f"The step {step.kind!r} names an asset that the artifact does not have.")


def _check_port(port: pb.Port) -> None:
    if port.datatype not in DATATYPES:
        raise AifbError("unknown_dtype", f"Port {port.name!r} has the unknown datatype {port.datatype[:80]!r}.")
    if len(port.shape) > MAX_DIMS or any(size < -1 for size in port.shape):
        raise AifbError("bad_shape", f"Port {port.name!r} has a shape that is too long or has a size below -1.")
