"""Run an artifact's graph node by node with torch: slow, plain, and independent of the engine."""

from collections.abc import Mapping

import numpy as np
import torch

from aifb import metadata_pb2 as pb
from aifb.importers.capture import DTYPES
from aifb.importers.quantise import dequantise
from aifb.reader import Artifact

BY_NUMBER = {int(info.number): dtype for dtype, info in DTYPES.items()}
SYMBOLIC = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "floordiv": int.__floordiv__}


def weights(artifact: Artifact) -> dict[str, torch.Tensor]:
    """All tensors as the graph computes with them."""
    made = {}
    for name in artifact.tensor_names:
        how, data = artifact.quantisation(name), artifact.tensor_data(name)
        values = dequantise(data, artifact.tensor_data(how.scale_tensor), how) if how else np.array(data.array())
        tensor = torch.from_numpy(values)
        made[name] = tensor.view(torch.bfloat16) if data.dtype == "bfloat16" else tensor
    return made


def run(
    graph: pb.Graph, tensors: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Outputs by name."""
    values: dict[str, object] = dict(inputs)

    def argument(arg: pb.Arg) -> object:
        kind = arg.WhichOneof("kind")
        match kind:
            case "none":
                return None
            case "list":
                return [argument(item) for item in arg.list.items]
            case "tensor":
                return tensors[arg.tensor]
            case "value":
                return values[arg.value]
            case "dtype":
                return BY_NUMBER[arg.dtype]
        return getattr(arg, str(kind))

    for node in graph.nodes:
        library, *name = node.op.split(".")
        op = SYMBOLIC[name[0]] if library == "sym" else getattr(getattr(torch.ops.aten, name[0]), name[1])
        keywords = {named.name: argument(named.arg) for named in node.kwargs}
        result = op(*[argument(arg) for arg in node.args], **keywords)
        several = result if isinstance(result, tuple | list) else (result,)
        values.update({output: value for output, value in zip(node.outputs, several, strict=True) if output})
    return {output.name: values[output.value] for output in graph.outputs}  # type: ignore[misc]
