"""The flat plan against torch itself, and graphs that exercise each form of argument and result."""

from __future__ import annotations

import pytest
import torch

from aifb import metadata_pb2 as pb
from node.engine.compiler.plan import InputError, Plan, compile_graph
from node.engine.errors import LoadError
from node.engine.loader import Loaded, load
from node.engine.ops import resolve_all
from tests.engine.support import Artifacts


@pytest.fixture(scope="module")
def minilm(artifacts: Artifacts) -> Loaded:
    written = artifacts.minilm["v1"].written
    with open(written.path, "rb") as file:
        return load(file.fileno(), digest=written.digest, seal=False)


@pytest.mark.parametrize(("batch", "length"), [(1, 2), (1, 17), (3, 9), (16, 40), (64, 5), (1, 256)])
def test_minilm_equals_plain_torch(minilm: Loaded, artifacts: Artifacts, batch: int, length: int) -> None:
    random = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(1, 30000, (batch, length), generator=random)  # (b, t)
    mask = torch.ones_like(ids)
    mask[0, length // 2 + 1 :] = 0
    ours = minilm.plan.run({"input_ids": ids, "attention_mask": mask})["embedding"]
    with torch.inference_mode():
        theirs = artifacts.embedder(ids, mask)["embedding"]
    assert ours.shape == (batch, 384)
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_weights_lie_in_the_map_and_are_not_copied(minilm: Loaded) -> None:
    import numpy as np

    name = next(name for name in minilm.tensors if "word_embeddings" in name)
    mapped = np.frombuffer(minilm.artifact.tensor_bytes(name), np.uint8)
    assert minilm.tensors[name].data_ptr() == mapped.ctypes.data


@pytest.mark.parametrize("shape", [(1, 1), (65, 4), (1, 257)])
def test_sizes_outside_the_symbols_ranges_are_refused(minilm: Loaded, shape: tuple[int, int]) -> None:
    ids = torch.ones(shape, dtype=torch.int64)
    with pytest.raises(InputError, match="it must be"):
        minilm.plan.run({"input_ids": ids, "attention_mask": ids})


def test_inputs_that_disagree_about_a_symbol_are_refused(minilm: Loaded) -> None:
    with pytest.raises(InputError, match="another says"):
        minilm.plan.run(
            {"input_ids": torch.ones(2, 4, dtype=torch.int64), "attention_mask": torch.ones(2, 5, dtype=torch.int64)}
        )


def test_a_wrong_dtype_is_refused(minilm: Loaded) -> None:
    ids = torch.ones(1, 4)
    with pytest.raises(InputError, match="float32"):
        minilm.plan.run({"input_ids": ids, "attention_mask": ids})


def test_this_torch_has_every_allowed_operation() -> None:
    from aifb.ops import ALLOWED_OPS

    assert resolve_all() == len(ALLOWED_OPS)


# small graphs


def _value(name: str) -> pb.Arg:
    return pb.Arg(value=name)


def _int(value: int) -> pb.Arg:
    return pb.Arg(int_value=value)


def _list(*items: pb.Arg) -> pb.Arg:
    return pb.Arg(list=pb.ArgList(items=items))


def _plan(nodes: list[pb.Node], outputs: list[str], tensors: dict[str, torch.Tensor] | None = None) -> Plan:
    """A plan over x: float32 (n, 4)."""
    graph = pb.Graph(
        symbols=[pb.Symbol(name="n", min=1, max=8)],
        inputs=[pb.GraphInput(name="x", dtype=pb.FLOAT32, dims=[pb.Dim(symbol="n"), pb.Dim(size=4)])],
        nodes=nodes,
        outputs=[pb.GraphOutput(name=name, value=name, dtype=pb.FLOAT32) for name in outputs],
    )
    return compile_graph(graph, tensors or {})


X = torch.arange(12, dtype=torch.float32).view(3, 4)


def test_an_operation_with_several_results_fills_several_values() -> None:
    node = pb.Node(op="aten.max.dim", name="m", args=[_value("x"), _int(1)], outputs=["best", "where"])
    out = _plan([node], ["best", "where"]).run({"x": X})
    assert out["best"].tolist() == [3.0, 7.0, 11.0]
    assert out["where"].tolist() == [3, 3, 3]


def test_an_operation_that_gives_a_list_fills_several_values_and_skips_unused_ones() -> None:
    node = pb.Node(op="aten.split.Tensor", name="s", args=[_value("x"), _int(2), _int(1)], outputs=["", "right"])
    assert _plan([node], ["right"]).run({"x": X})["right"].tolist() == X[:, 2:].tolist()


def test_a_list_of_one_is_still_a_list() -> None:
    node = pb.Node(op="aten.split.Tensor", name="s", args=[_value("x"), _int(4), _int(1)], outputs=["all"])
    assert torch.equal(_plan([node], ["all"]).run({"x": X})["all"], X)


def test_lists_take_values_sizes_and_symbols() -> None:
    nodes = [
        pb.Node(op="aten.sym_size.int", name="size", args=[_value("x"), _int(1)], outputs=["width"]),
        pb.Node(op="sym.mul", name="mul", args=[pb.Arg(symbol="n"), _value("width")], outputs=["count"]),
        pb.Node(op="aten.view.default", name="flat", args=[_value("x"), _list(_value("count"))], outputs=["flat"]),
        pb.Node(op="aten.cat.default", name="cat", args=[_list(_value("flat"), _value("flat"))], outputs=["twice"]),
    ]
    assert _plan(nodes, ["twice"]).run({"x": X})["twice"].tolist() == [*range(12), *range(12)]


def test_keyword_arguments_may_be_constant_or_computed() -> None:
    nodes = [
        pb.Node(
            op="aten.sum.dim_IntList",
            name="sum",
            args=[_value("x")],
            kwargs=[
                pb.NamedArg(name="dim", arg=_list(_int(1))),
                pb.NamedArg(name="keepdim", arg=pb.Arg(bool_value=True)),
                pb.NamedArg(name="dtype", arg=pb.Arg(dtype=pb.FLOAT64)),
            ],
            outputs=["sum"],
        ),
        pb.Node(
            op="aten.add.Tensor",
            name="add",
            args=[_value("x")],
            kwargs=[pb.NamedArg(name="other", arg=_value("sum")), pb.NamedArg(name="alpha", arg=_int(2))],
            outputs=["y"],
        ),
    ]
    out = _plan(nodes, ["y"]).run({"x": X})["y"]
    assert out.dtype == torch.float64
    assert torch.equal(out, X + 2 * X.sum(1, keepdim=True).double())


def test_weights_are_shared_between_the_nodes_that_use_them_and_a_run_leaves_no_trace() -> None:
    weight = torch.eye(4)
    nodes = [
        pb.Node(op="aten.linear.default", name="a", args=[_value("x"), pb.Arg(tensor="w")], outputs=["a"]),
        pb.Node(op="aten.linear.default", name="b", args=[_value("a"), pb.Arg(tensor="w")], outputs=["b"]),
    ]
    plan = _plan(nodes, ["b"], {"w": weight})
    first = plan.run({"x": X})["b"]
    assert torch.equal(plan.run({"x": X + 1})["b"], X + 1)
    assert torch.equal(first, X)


def test_values_die_at_their_last_use() -> None:
    import weakref

    plan = _plan(
        [
            pb.Node(op="aten.exp.default", name="a", args=[_value("x")], outputs=["a"]),
            pb.Node(op="aten.neg.default", name="b", args=[_value("a")], outputs=["b"]),
            pb.Node(op="aten.abs.default", name="c", args=[_value("b")], outputs=["c"]),
        ],
        ["c"],
    )
    registers = list(plan._template)
    registers[plan._input_registers[0]] = X
    alive = []
    for step in plan._steps:
        step(registers)
        made = [value for value in registers if isinstance(value, torch.Tensor) and value is not X]
        alive.append(len(made))
        assert all(weakref.ref(value)() is value for value in made)
    assert alive == [1, 1, 1]


def test_an_operation_off_the_list_is_refused() -> None:
    node = pb.Node(op="aten.empty.memory_format", name="e", args=[_list(_int(4))], outputs=["e"])
    with pytest.raises(LoadError, match="allow-list") as caught:
        _plan([node], ["e"])
    assert caught.value.code == "unknown_op"


def test_a_symbol_that_no_input_measures_is_refused() -> None:
    graph = pb.Graph(
        symbols=[pb.Symbol(name="k", min=1, max=8)],
        inputs=[pb.GraphInput(name="x", dtype=pb.FLOAT32, dims=[pb.Dim(size=1)])],
        nodes=[pb.Node(op="sym.add", name="n", args=[pb.Arg(symbol="k"), _int(1)], outputs=["y"])],
        outputs=[pb.GraphOutput(name="y", value="y", dtype=pb.INT64)],
    )
    with pytest.raises(LoadError, match="no input"):
        compile_graph(graph, {})
