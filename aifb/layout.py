"""Where tensors and assets lie in the data region: in one order, without holes, so that nothing needs padding."""

from collections.abc import Iterable
from typing import NamedTuple

from aifb.errors import AifbError

_MAX_POWER = 4096


class Span(NamedTuple):
    """A named stretch of the data region, in bytes from its start."""

    name: str
    offset: int
    length: int


def order_key(name: str, length: int) -> tuple[int, str]:
    """Sort key of the data region: the greatest power of two dividing the length first (capped at 4,096), then name.

    Everything before an item is then a multiple of the item's own power, hence so is its offset.
    """
    power = min(length & -length, _MAX_POWER) if length else _MAX_POWER
    return -power, name


def place(lengths: Iterable[tuple[str, int]]) -> list[Span]:
    """Give every (name, length) its offset, in the order of the data region."""
    spans, offset = [], 0
    for name, length in sorted(lengths, key=lambda item: order_key(*item)):
        spans.append(Span(name, offset, length))
        offset += length
    return spans


def check(spans: list[Span], data_bytes: int) -> None:
    """Check that spans tile the data region exactly and in its order.

    Raises AifbError: out_of_range, overlap, gap, bad_layout.
    """
    for span in spans:
        if span.offset + span.length > data_bytes:
            raise AifbError("out_of_range", f"{span.name!r} ends behind the data region of {data_bytes} bytes.")
    end = 0
    for span in sorted(spans, key=lambda span: (span.offset, span.length)):
        if span.offset < end:
            raise AifbError("overlap", f"{span.name!r} at {span.offset} overlaps what lies before it (up to {end}).")
        if span.offset > end:
            raise AifbError("gap", f"Nothing accounts for the data bytes {end} to {span.offset} before {span.name!r}.")
        end = span.offset + span.length
    if end != data_bytes:
        raise AifbError("gap", f"Nothing accounts for the data bytes {end} to {data_bytes} at the end.")
    for span, expected in zip(
        sorted(spans, key=lambda span: order_key(span.name, span.length)),
        place((span.name, span.length) for span in spans),
        strict=True,
    ):
        if span != expected:
            raise AifbError(
                "bad_layout", f"{span.name!r} lies at {span.offset}, the format's order puts it at {expected.offset}."
            )
