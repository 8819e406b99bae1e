"""The op table: what each name on the artifact's allow-list calls in torch.

An artifact names operations, it never carries code: a name that isn't here can't be executed, whatever the file says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from aifb.ops import ALLOWED_OPS
from node.engine.errors import LoadError

# Arithmetic on sizes: Python integers, rounding down as the exporter means it.
_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "sym.add": operator.add,
    "sym.sub": operator.sub,
    "sym.mul": operator.mul,
    "sym.floordiv": operator.floordiv,
    "aten.sym_size.int": lambda tensor, dim: int(tensor.shape[dim]),
}


@dataclass(frozen=True)
class Op:
    """A callable and whether it gives several results (then a tuple or list comes back) or one."""

    call: Callable[..., Any]
    is_sequence: bool


@cache
def op(name: str) -> Op:
    """The op of that name. Raises LoadError `unknown_op`: not on the allow-list, or this torch lacks it."""
    if name not in ALLOWED_OPS:
        raise LoadError("unknown_op", f"The operation {name!r} is not on the allow-list: pack the model again.")
    if name in _SYMBOLIC:
        return Op(_SYMBOLIC[name], is_sequence=False)
    _, packet, overload = name.split(".")
    try:
        call = getattr(getattr(torch.ops.aten, packet), overload)
    except AttributeError as error:
        message = f"The engine's torch {torch.__version__} has no operation {name!r}: update the node."
        raise LoadError("unknown_op", message) from error
    returns = call._schema.returns
    # Tensor[] is one return that is a list; (Tensor, Tensor) are two returns
    is_list = len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
    return Op(call, is_sequence=len(returns) > 1 or is_list)


def resolve_all() -> int:
    """Look every allowed op up, so that the fork server has them before an engine does; returns how many exist."""
    found = 0
    for name in sorted(ALLOWED_OPS):
        try:
            op(name)
        except LoadError:
            continue  # an artifact that asks for it is refused by name when it is loaded
        found += 1
    return found
