"""A graph becomes a flat list of closures over numbered registers.

Every argument is resolved once: constants and weights lie in the registers from the start, a step fetches its arguments
with one `itemgetter` and stores its result; registers that nobody reads again are emptied at once, so that torch can
reuse their memory. A run works on its own copy of the registers: runs don't share state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from aifb import metadata_pb2 as pb
from node.engine.dtypes import torch_dtype
from node.engine.errors import EngineError, LoadError
from node.engine.ops import op

Registers = list[Any]
Step = Callable[[Registers], None]


class InputError(EngineError):
    """An input of `Plan.run` doesn't fit the graph."""


@dataclass(frozen=True)
class Dim:
    """One dimension of a graph input: `symbol` is empty where the size is fixed (then min = max)."""

    symbol: str
    min: int
    max: int


@dataclass(frozen=True)
class InputSpec:
    """A graph input: its dtype and dimensions."""

    name: str
    dtype: torch.dtype
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Plan:
    """What `compile_graph` makes; immutable, and safe to run from one thread at a time or from many."""

    inputs: tuple[InputSpec, ...]
    output_names: tuple[str, ...]
    _input_registers: tuple[int, ...]
    _symbol_registers: Mapping[str, int]
    _output_registers: tuple[int, ...]
    _template: tuple[Any, ...]
    _steps: tuple[Step, ...]

    @property
    def step_count(self) -> int:
        """Number of closures, helper steps that build lists included."""
        return len(self._steps)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Execute the graph. Raises InputError `bad_input` where a shape or dtype isn't what the graph says."""
        registers = list(self._template)
        sizes: dict[str, int] = {}
        for spec, register in zip(self.inputs, self._input_registers, strict=True):
            tensor = inputs[spec.name]
            _check(spec, tensor, sizes)
            registers[register] = tensor
        for name, register in self._symbol_registers.items():
            registers[register] = sizes[name]
        with torch.inference_mode():
            for step in self._steps:
                step(registers)
        return {
            name: registers[register] for name, register in zip(self.output_names, self._output_registers, strict=True)
        }


def _check(spec: InputSpec, tensor: torch.Tensor, sizes: dict[str, int]) -> None:
    if tensor.dtype != spec.dtype or tensor.dim() != len(spec.dims):
        wanted = f"{len(spec.dims)} dimensions of {spec.dtype}"
        raise InputError("bad_input", f"Input {spec.name!r} has {tensor.dim()} of {tensor.dtype}, not {wanted}.")
    for position, (size, dim) in enumerate(zip(tensor.shape, spec.dims, strict=True)):
        if not dim.min <= size <= dim.max:
            limits = f"it must be {dim.min} to {dim.max}"
            raise InputError("bad_input", f"Input {spec.name!r} has size {size} in dimension {position}: {limits}.")
        if dim.symbol and sizes.setdefault(dim.symbol, size) != size:
            other = sizes[dim.symbol]
            raise InputError("bad_input", f"Input {spec.name!r} says {dim.symbol} is {size}, another says {other}.")


def compile_graph(graph: pb.Graph, tensors: Mapping[str, torch.Tensor]) -> Plan:
    """Turn a graph that the reader has checked into a plan; `tensors` are its weights by name.

    Raises LoadError: `unknown_op`, `unsupported_dtype`, `bad_graph`.
    """
    return _Compiler(graph, tensors).compile()


class _Compiler:
    """Registers are handed out in order; `_last_use` finds the step after which a computed value isn't read again."""

    def __init__(self, graph: pb.Graph, tensors: Mapping[str, torch.Tensor]) -> None:
        self._graph = graph
        self._tensors = tensors
        self._template: Registers = []
        self._values: dict[str, int] = {}
        self._weights: dict[str, int] = {}
        self._symbols: dict[str, int] = {}
        self._ranges = {symbol.name: (symbol.min, symbol.max) for symbol in graph.symbols}
        # (closure, registers it reads, registers it makes)
        self._steps: list[tuple[Step, tuple[int, ...], tuple[int, ...]]] = []

    def compile(self) -> Plan:
        inputs = tuple(self._input(item) for item in self._graph.inputs)
        given = tuple(self._values[spec.name] for spec in inputs)
        for node in self._graph.nodes:
            self._add_node(node)
        outputs = tuple(self._values[output.value] for output in self._graph.outputs)
        self._check_symbols(inputs)
        return Plan(
            inputs=inputs,
            output_names=tuple(output.name for output in self._graph.outputs),
            _input_registers=given,
            _symbol_registers=dict(self._symbols),
            _output_registers=outputs,
            _template=tuple(self._template),
            _steps=tuple(self._with_frees(kept={*given, *outputs})),
        )

    def _input(self, item: pb.GraphInput) -> InputSpec:
        self._values[item.name] = self._new()
        return InputSpec(
            item.name, torch_dtype(item.dtype, f"Input {item.name!r}"), tuple(self._dim(dim) for dim in item.dims)
        )

    def _dim(self, dim: pb.Dim) -> Dim:
        if dim.WhichOneof("kind") == "symbol":
            return Dim(dim.symbol, *self._ranges[dim.symbol])
        return Dim("", dim.size, dim.size)

    def _check_symbols(self, inputs: tuple[InputSpec, ...]) -> None:
        known = {dim.symbol for spec in inputs for dim in spec.dims}
        for name in self._symbols:
            if name not in known:
                raise LoadError("bad_graph", f"The symbol {name!r} is used but no input's dimension gives its size.")

    def _new(self, constant: Any = None) -> int:
        self._template.append(constant)
        return len(self._template) - 1

    # arguments → registers

    def _argument(self, arg: pb.Arg) -> int:
        kind = arg.WhichOneof("kind")
        if kind == "value":
            return self._values[arg.value]
        if kind == "tensor":
            if arg.tensor not in self._weights:
                self._weights[arg.tensor] = self._new(self._tensors[arg.tensor])
            return self._weights[arg.tensor]
        if kind == "symbol":
            if arg.symbol not in self._symbols:
                self._symbols[arg.symbol] = self._new()
            return self._symbols[arg.symbol]
        if kind == "list" and not _is_constant(arg):
            return self._build_list([self._argument(item) for item in arg.list.items])
        return self._new(_constant(arg))

    def _build_list(self, items: list[int]) -> int:
        target = self._new()
        self._steps.append((_list_step(_getter(items), target), tuple(items), (target,)))
        return target

    # nodes → steps

    def _add_node(self, node: pb.Node) -> None:
        operation = op(node.op)
        reads = [self._argument(arg) for arg in node.args]
        call = operation.call
        named = {item.name: item.arg for item in node.kwargs}
        fixed = {name: _constant(arg) for name, arg in named.items() if _is_constant(arg)}
        if fixed:
            call = partial(call, **fixed)
        computed = {name: self._argument(arg) for name, arg in named.items() if name not in fixed}
        if computed:
            call = _with_keywords(call, len(reads), tuple(computed))
            reads += computed.values()
        makes = []
        for name in node.outputs:
            register = self._new()
            makes.append(register)
            if name:
                self._values[name] = register
        if not operation.is_sequence and len(makes) != 1:
            raise LoadError(
                "bad_graph", f"Node {node.name!r} names {len(makes)} results of {node.op}, which gives one."
            )
        step = _many_step if operation.is_sequence else _one_step
        self._steps.append((step(call, _getter(reads), makes, node.name), tuple(reads), tuple(makes)))

    # lifetimes

    def _with_frees(self, kept: set[int]) -> list[Step]:
        last_use: dict[int, int] = {}
        for index, (_, reads, makes) in enumerate(self._steps):
            # a result that nobody reads dies where it is made
            last_use.update(dict.fromkeys((*reads, *makes), index))
        made = {register for _, _, makes in self._steps for register in makes}
        dying: dict[int, list[int]] = {}
        for register, index in last_use.items():
            if register in made and register not in kept:
                dying.setdefault(index, []).append(register)
        return [
            _freeing(step, dying[index]) if index in dying else step for index, (step, _, _) in enumerate(self._steps)
        ]


def _getter(indices: list[int]) -> Callable[[Registers], tuple[Any, ...]]:
    """The registers of `indices` as a tuple; itemgetter alone gives a bare value for one and can't take none."""
    if not indices:
        return lambda registers: ()  # noqa: ARG005 - the shape of every getter
    if len(indices) == 1:
        only = indices[0]
        return lambda registers: (registers[only],)
    return itemgetter(*indices)


def _one_step(call: Callable[..., Any], get: Callable[[Registers], Any], makes: list[int], name: str) -> Step:
    target = makes[0]

    def step(registers: Registers) -> None:
        registers[target] = call(*get(registers))

    step.__qualname__ = name
    return step


def _many_step(call: Callable[..., Any], get: Callable[[Registers], Any], makes: list[int], name: str) -> Step:
    def step(registers: Registers) -> None:
        results = call(*get(registers))
        if len(results) != len(makes):
            raise EngineError("bad_graph", f"Node {name!r} gave {len(results)} results, its graph names {len(makes)}.")
        for target, result in zip(makes, results, strict=True):
            registers[target] = result

    step.__qualname__ = name
    return step


def _list_step(get: Callable[[Registers], Any], target: int) -> Step:
    def step(registers: Registers) -> None:
        registers[target] = list(get(registers))

    return step


def _freeing(step: Step, registers_to_free: list[int]) -> Step:
    freed = tuple(registers_to_free)

    def step_and_free(registers: Registers) -> None:
        step(registers)
        for register in freed:
            registers[register] = None

    return step_and_free


def _with_keywords(call: Callable[..., Any], positional: int, names: tuple[str, ...]) -> Callable[..., Any]:
    def call_with_keywords(*values: Any) -> Any:
        return call(*values[:positional], **dict(zip(names, values[positional:], strict=True)))

    return call_with_keywords


def _is_constant(arg: pb.Arg) -> bool:
    kind = arg.WhichOneof("kind")
    if kind == "list":
        return all(_is_constant(item) for item in arg.list.items)
    return kind not in {"tensor", "value", "symbol"}


def _constant(arg: pb.Arg) -> Any:
    kind = arg.WhichOneof("kind")
    if kind == "none":
        return None
    if kind == "dtype":
        return torch_dtype(arg.dtype, "An argument")
    if kind == "list":
        return [_constant(item) for item in arg.list.items]
    if kind in {"bool_value", "int_value", "float_value", "str_value"}:
        return getattr(arg, kind)
    raise LoadError("bad_graph", f"An argument of the graph has no constant value: {kind}.")
