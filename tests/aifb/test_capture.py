"""Modules of many kinds come through capture, the file and back with equal outputs."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.importers.capture import Captured, capture
from aifb.importers.quantise import int8_per_row, int8_per_tensor
from aifb.ops import ALLOWED_OPS
from aifb.reader import open_artifact
from aifb.writer import write_artifact
from tests.aifb import interpret

BATCH = Dim("batch", min=1, max=32)


class Tied(nn.Module):
    """Embedding and output projection share their weight; a second buffer shares another's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


class Normed(nn.Module):
    """Batch norm and dropout, which must be in evaluation mode, around a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.drop(F.silu(self.norm(self.conv(ids.float().view(-1, 1, 4, 5))))).mean((2, 3))


class Many(nn.Module):
    """Ops with several results, some unused; several outputs."""

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        left, _, right = ids.float().split([8, 4, 8], dim=1)
        best = left.max(dim=1)
        first, second = torch.chunk(right, 2, dim=1)
        return {"value": best.values + first[:, 0], "index": best.indices, "top": torch.topk(second, 2).values}


class Sized(nn.Module):
    """Arithmetic on symbolic sizes, a constant, a non-persistent buffer, a dtype argument, infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(20), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        b, t = ids.shape
        flat = (ids + self.offset + torch.tensor(3)).reshape(b * t)
        mask = torch.arange(t) > 4
        return flat.view(b, t).to(torch.float64).masked_fill(mask, float("-inf")).softmax(-1) + torch.zeros(b * 2)[0]


class Half(nn.Module):
    """Weights in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(20, 3, dtype=torch.bfloat16)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.head(ids.to(torch.bfloat16)).float()
        return logits, logits.argmax(-1)


def pack(captured: Captured, path: Path, quantisation: Mapping[str, pb.Quantisation] | None = None) -> Path:
    """Write a capture without assets."""
    return write_artifact(
        path,
        tensors=captured.tensors,
        graph=captured.graph,
        assets={},
        entry_points=[],
        quantisation=quantisation,
    ).path


@pytest.mark.parametrize("kind", [Tied, Normed, Many, Sized, Half])
def test_module_computes_the_same_from_its_artifact(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = kind().eval()
    captured = capture(module, {"ids": torch.zeros(3, 20, dtype=torch.int64)}, {"ids": {0: BATCH}})
    with open_artifact(pack(captured, tmp_path / "a.aifb")) as artifact, torch.no_grad():
        for rows in (1, 2, 9):
            ids = torch.randint(0, 20, (rows, 20))
            expected = module(ids=ids)
            if isinstance(expected, Tensor):
                expected = {"output": expected}
            elif isinstance(expected, tuple):
                expected = {f"output_{index}": value for index, value in enumerate(expected)}
            outputs = interpret.run(artifact.metadata.graph, interpret.weights(artifact), {"ids": ids})
            assert list(outputs) == list(expected)
            for name, value in expected.items():
                assert torch.equal(outputs[name], value), name


def test_symbols_carry_their_names_and_ranges() -> None:
    captured = capture(Sized(), {"ids": torch.zeros(3, 20, dtype=torch.int64)}, {"ids": {0: BATCH}})
    (symbol,) = captured.graph.symbols
    assert (symbol.name, symbol.min, symbol.max) == ("batch", 1, 32)
    (given,) = captured.graph.inputs
    assert (given.name, given.dtype) == ("ids", pb.INT64)
    assert [dim.WhichOneof("kind") for dim in given.dims] == ["symbol", "size"]


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    captured = capture(Tied(), {"ids": torch.zeros(3, 20, dtype=torch.int64)}, {"ids": {0: BATCH}})
    with open_artifact(pack(captured, tmp_path / "a.aifb")) as artifact:
        assert artifact.header.data_bytes == 20 * 8 * 4


def test_evaluation_mode_has_no_dropout() -> None:
    module = Normed().train()
    captured = capture(module, {"ids": torch.zeros(3, 20)}, {"ids": {0: BATCH}})
    assert not [node.op for node in captured.graph.nodes if "dropout" in node.op]


class Opens(nn.Module):
    """Asks for randomness, which no artifact may."""

    def forward(self, ids: Tensor) -> Tensor:
        return ids + torch.rand(20)


class Mutates(nn.Module):
    """Writes to its input."""

    def forward(self, ids: Tensor) -> Tensor:
        return ids.add_(1)


class Constant(nn.Module):
    """Takes no notice of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.answer


class Listless(nn.Module):
    """Returns something that is no tensor."""

    def forward(self, ids: Tensor) -> int:
        return 1


class Fixed(nn.Module):
    """Works for one batch size only, whatever is asked for."""

    def forward(self, ids: Tensor) -> Tensor:
        return ids.view(3, 20) * 1.0


@pytest.mark.parametrize("kind", [Opens, Mutates, Constant, Listless])
def test_what_the_format_can_not_hold_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(AifbError) as refusal:
        capture(kind(), {"ids": torch.zeros(3, 20)}, {"ids": {0: BATCH}})
    assert refusal.value.code == "not_importable"


def test_size_that_the_model_fixes_is_refused_with_a_sentence() -> None:
    with pytest.raises(AifbError) as refusal:
        capture(Fixed(), {"ids": torch.zeros(3, 20)}, {"ids": {0: BATCH}})
    assert refusal.value.code == "not_importable"


@pytest.mark.parametrize("name", sorted(op for op in ALLOWED_OPS if op.startswith("aten.")))
def test_allowed_op_exists_and_writes_to_none_of_its_arguments(name: str) -> None:
    _, op, overload = name.split(".")
    found = getattr(getattr(torch.ops.aten, op), overload)
    assert not found._schema.is_mutable
    random = torch.Tag.nondeterministic_seeded in found.tags
    assert not random or op == "scaled_dot_product_attention"  # whose dropout the reader refuses


@pytest.mark.parametrize("scheme", [int8_per_row, int8_per_tensor])
def test_int8_is_off_by_half_a_step_at_most(scheme: type, tmp_path: Path) -> None:
    module = nn.Sequential()
    module.add_module("head", nn.Linear(20, 7))
    with torch.no_grad():
        module.head.weight[3] = 0  # a row without any weight
        module.head.weight[4] *= 100
    captured = capture(_Named(module), {"ids": torch.zeros(3, 20)}, {"ids": {0: BATCH}})
    quantised = scheme(captured.tensors)
    path = pack(Captured(captured.graph, quantised.tensors), tmp_path / "a.aifb", quantised.quantisation)
    with open_artifact(path) as artifact:
        name = "inner.head.weight"
        assert artifact.dtype_name(name) == "int8"
        assert artifact.dtype_name("inner.head.bias") == "float32"
        step = torch.from_numpy(artifact.array(f"{name}.scale").copy()).reshape(-1, 1)
        error = (interpret.weights(artifact)[name] - module.head.weight.detach()).abs()
    assert step.numel() == (7 if scheme is int8_per_row else 1)
    assert torch.all(error <= step / 2 * 1.0001)
    assert torch.all(error[3] == 0)


class _Named(nn.Module):
    """Gives a module an input called `ids`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids)
