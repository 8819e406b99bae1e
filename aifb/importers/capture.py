"""Capture a torch module as an AIFB graph: `torch.export`, undecomposed ATen, symbolic sizes kept symbolic."""

import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import fx
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from aifb import dtypes
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.ops import ALLOWED_OPS
from aifb.tensors import TensorData

UNBOUNDED = (1 << 31) - 1  # for a symbolic size without an upper bound

_TORCH_NAMES = {"float8_e4m3": "float8_e4m3fn"}
DTYPES: dict[torch.dtype, dtypes.DTypeInfo] = {
    getattr(torch, _TORCH_NAMES.get(info.name, info.name)): info for info in dtypes.BY_NAME.values() if info.bits >= 8
}
_SYMBOLIC = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv"}
# Keywords that say where and how results lie in memory: the engine's own business, as long as they ask for the usual.
_PLACEMENT = frozenset({"device", "pin_memory", "layout", "memory_format", "non_blocking"})
_GUARDS = (
    torch.ops.aten.alias.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.detach_.default,
    torch.ops.aten.lift_fresh_copy.default,
)
_USUAL_FORMATS = (torch.contiguous_format, torch.preserve_format)


class Captured(NamedTuple):
    """A graph and the tensors that it refers to, by their names in the module."""

    graph: pb.Graph
    tensors: dict[str, TensorData]


def capture(
    module: torch.nn.Module,
    example_inputs: Mapping[str, torch.Tensor],
    dynamic_shapes: Mapping[str, Mapping[int, Dim]],
) -> Captured:
    """Export `module` in evaluation mode, called with `example_inputs` by keyword.

    `dynamic_shapes` gives the dimensions (axis → torch.export.Dim) that may vary, per input; sizes of the examples
    there must be at least 2, or torch takes them for fixed. A module that returns a dict names its outputs; a single
    tensor is called `output`, those of a tuple `output_0`, `output_1`, …. Raises AifbError(not_importable).
    """
    module = module.eval()
    shapes = {name: dict(dynamic_shapes.get(name, {})) for name in example_inputs}
    with torch.no_grad():
        names = _output_names(module(**example_inputs))
        program = _export(module, example_inputs, shapes)
    return _Translator(program, shapes, names).run()


def tensor_data(tensor: torch.Tensor) -> TensorData:
    """A torch tensor as the format sees it, on the CPU and dense. Raises AifbError(not_importable)."""
    if tensor.dtype not in DTYPES:
        raise AifbError("not_importable", f"Tensors of {tensor.dtype} have no place in the format: convert them first.")
    dense = tensor.detach().cpu().contiguous()
    info = DTYPES[tensor.dtype]
    raw = dense.reshape(-1).view(torch.uint8).numpy() if dense.numel() else np.empty(0, np.uint8)
    return TensorData(info.name, tuple(tensor.shape), raw.data)


def _export(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], shapes: Mapping[str, Mapping[int, Dim]]
) -> ExportedProgram:
    dynamic = {name: dict(axes) for name, axes in shapes.items()}
    try:
        return torch.export.export(module, (), kwargs=dict(inputs), dynamic_shapes=dynamic, strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise AifbError("not_importable", f"torch.export can't follow the model: {reason}") from error


def _output_names(result: object) -> list[str]:
    if isinstance(result, torch.Tensor):
        return ["output"]
    if isinstance(result, dict):
        return [str(name) for name in result]
    if isinstance(result, tuple | list):
        return [f"output_{index}" for index in range(len(result))]
    raise AifbError("not_importable", "The module must return a tensor, a dict of tensors or a tuple of tensors.")


class _Translator:
    """Walks one exported program; what earlier nodes were translated to lies in `_refs`."""

    def __init__(
        self, program: ExportedProgram, shapes: Mapping[str, Mapping[int, Dim]], output_names: list[str]
    ) -> None:
        self._program = program
        self._shapes = shapes
        self._output_names = output_names
        self._graph = pb.Graph()
        self._tensors: dict[str, TensorData] = {}
        self._storages: dict[tuple[object, ...], str] = {}
        self._refs: dict[fx.Node, pb.Arg] = {}
        self._symbols: dict[str, str] = {}  # torch's name for a size ("s12") → ours ("batch")

    def run(self) -> Captured:
        nodes = list(self._program.graph.nodes)
        live = _reachable(nodes)
        self._check_ops([node for node in nodes if node in live])
        self._translate_inputs(live)
        for node in nodes:
            if node.op == "call_function" and node in live:
                self._translate_call(node)
        self._translate_outputs(nodes[-1])
        return Captured(self._graph, self._tensors)

    def _check_ops(self, live: Sequence[fx.Node]) -> None:
        unknown = sorted(
            {
                _op_name(node)
                for node in live
                if node.op == "get_attr"
                or (node.op == "call_function" and not _passes_through(node) and _op_name(node) not in ALLOWED_OPS)
            }
            - {"getitem"}
        )
        if unknown:
            raise AifbError("not_importable", f"The model needs operations that are not allowed: {', '.join(unknown)}.")

    def _translate_inputs(self, live: set[fx.Node]) -> None:
        placeholders = {node.name: node for node in self._program.graph.nodes if node.op == "placeholder"}
        state = {**self._program.state_dict, **self._program.constants}
        user_names = iter(self._shapes)
        for spec in self._program.graph_signature.input_specs:
            node = placeholders[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                self._refs[node] = pb.Arg(value=self._add_input(node, next(user_names)))
            elif isinstance(tensor := state.get(spec.target or ""), torch.Tensor):
                if node in live:
                    self._refs[node] = pb.Arg(tensor=self._add_tensor(spec.target, tensor))
            else:
                raise AifbError("not_importable", f"The model takes {spec.arg.name!r}, which is no tensor: remove it.")

    def _add_input(self, node: fx.Node, name: str) -> str:
        value = node.meta["val"]
        for axis, dim in self._shapes[name].items():
            symbol = str(value.shape[axis])
            if isinstance(value.shape[axis], int):
                raise AifbError("not_importable", f"The model fixes dimension {axis} of {name!r} to {symbol}.")
            if symbol not in self._symbols:
                self._symbols[symbol] = dim.__name__
                low, high = (getattr(dim, "min", 0), getattr(dim, "max", UNBOUNDED))
                self._graph.symbols.add(
                    name=dim.__name__,
                    min=low if isinstance(low, int) else 0,
                    max=min(high, UNBOUNDED) if isinstance(high, int) else UNBOUNDED,
                )
        self._graph.inputs.add(name=name, dtype=DTYPES[value.dtype].number, dims=self._dims(value))
        return name

    def _add_tensor(self, name: str, tensor: torch.Tensor) -> str:
        storage = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        if tensor.numel() and storage in self._storages:
            target = self._storages[storage]
            self._tensors[name] = TensorData.alias(target, self._tensors[target])
        else:
            self._storages[storage] = name
            self._tensors[name] = tensor_data(tensor)
        return name

    def _translate_call(self, node: fx.Node) -> None:
        if _passes_through(node):
            self._refs[node] = self._arg(node.args[0])
            return
        if node.target is operator.getitem:
            return  # _result_names has given it its value already
        made = self._graph.nodes.add(op=_op_name(node), name=node.name, outputs=self._result_names(node))
        made.args.extend(self._arg(arg) for arg in node.args)
        for name, value in node.kwargs.items():
            if name in _PLACEMENT:
                _check_placement(name, value)
            else:
                made.kwargs.add(name=name, arg=self._arg(value))

    def _result_names(self, node: fx.Node) -> list[str]:
        """One name for a single result; for several, that of each `getitem`, or none where nobody takes it."""
        value = node.meta.get("val")
        if not isinstance(value, tuple | list):
            self._refs[node] = pb.Arg(value=node.name)
            return [node.name]
        names = [""] * len(value)
        for user in node.users:
            index = user.args[1] if user.target is operator.getitem else None
            if not isinstance(index, int):
                raise AifbError("not_importable", f"{user.name!r} takes the results of {node.name!r} all at once.")
            names[index] = names[index] or user.name
            self._refs[user] = pb.Arg(value=names[index])
        return names

    def _translate_outputs(self, node: fx.Node) -> None:
        results = node.args[0]
        flat = list(results) if isinstance(results, tuple | list) else [results]
        if len(flat) != len(self._output_names):
            raise AifbError("not_importable", "The module must return a flat dict or tuple of tensors.")
        for name, result in zip(self._output_names, flat, strict=True):
            if not isinstance(result, fx.Node) or self._refs[result].WhichOneof("kind") != "value":
                raise AifbError("not_importable", f"The output {name!r} is not computed by the graph.")
            value = result.meta["val"]
            self._graph.outputs.add(
                name=name, value=self._refs[result].value, dtype=DTYPES[value.dtype].number, dims=self._dims(value)
            )

    def _dims(self, value: torch.Tensor) -> list[pb.Dim]:
        """Sizes as numbers or symbols; one that is an expression of symbols stays open."""
        return [
            pb.Dim(size=size)
            if isinstance(size, int)
            else pb.Dim(symbol=self._symbols[str(size)])
            if str(size) in self._symbols
            else pb.Dim()
            for size in value.shape
        ]

    def _arg(self, value: object) -> pb.Arg:
        match value:
            case fx.Node():
                return self._refs[value]
            case None:
                return pb.Arg(none=True)
            case bool():
                return pb.Arg(bool_value=value)
            case int():
                return pb.Arg(int_value=value)
            case float():
                return pb.Arg(float_value=value)
            case str():
                return pb.Arg(str_value=value)
            case torch.dtype() if value in DTYPES:
                return pb.Arg(dtype=DTYPES[value].number)
            case torch.memory_format() if value in _USUAL_FORMATS:
                return pb.Arg(none=True)
            case torch.SymInt() if str(value) in self._symbols:
                return pb.Arg(symbol=self._symbols[str(value)])
            case list() | tuple():
                return pb.Arg(list=pb.ArgList(items=[self._arg(item) for item in value]))
        raise AifbError("not_importable", f"The graph has an argument that the format can't hold: {value!r}.")


def _reachable(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What the outputs depend on: the allowed ops are pure, so the rest (size assertions) can go."""
    live = {nodes[-1]}
    for node in reversed(nodes):
        if node in live:
            live.update(node.all_input_nodes)
    return live


def _op_name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._opname}.{target._overloadname}"
    if target is operator.getitem:
        return "getitem"
    if target in _SYMBOLIC:
        return f"sym.{_SYMBOLIC[target]}"
    return getattr(target, "__name__", str(target))


def _passes_through(node: fx.Node) -> bool:
    """Whether the node returns its argument: dropout outside of training, and what guards constants from being written
    to or differentiated, as nothing does either here."""
    if node.target is torch.ops.aten.dropout.default:
        return not (node.args[2] if len(node.args) > 2 else node.kwargs.get("train"))
    return node.target in _GUARDS


def _check_placement(name: str, value: object) -> None:
    usual = (
        name in ("device", "non_blocking")
        or (name == "pin_memory" and not value)
        or (name == "layout" and value in (None, torch.strided))
        or (name == "memory_format" and (value is None or value in _USUAL_FORMATS))
    )
    if not usual:
        raise AifbError("not_importable", f"The graph asks for {name}={value}, which the engine does not offer.")
