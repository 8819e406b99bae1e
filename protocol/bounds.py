"""How many fields a protobuf message has, told from its bytes: to a parser two of them can mean a whole object."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10


def has_more_fields_than(raw: bytes | memoryview, limit: int) -> bool:
    """Tell whether the message has more than `limit` fields of its own, looking no further than it must.

    Fields inside its fields don't count. Raises ValueError for bytes that are no message, groups among them.
    """
    return any(count > limit for count, _ in enumerate(_fields(raw), start=1))


def payloads(raw: bytes, number: int) -> Iterator[memoryview]:
    """Yield what the message holds in fields of this number: strings, bytes, messages. Raises ValueError likewise."""
    view = memoryview(raw)
    for found, kind, start, end in _fields(raw):
        if found == number and kind == _BYTES:
            yield view[start:end]


def _fields(raw: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field's number, wire type, and where its value begins and ends."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, kind = tag >> 3, tag & 7
        start = position
        if kind == _VARINT:
            _, position = _varint(raw, position)
        elif kind == _BYTES:
            length, start = _varint(raw, position)
            position = start + length
        elif kind in _FIXED:
            position += _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} at byte {position}")
        if position > len(raw):
            raise ValueError("the last field ends beyond the message")
        yield number, kind, start, position


def _varint(raw: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number that begins at `position`, and where it ends."""
    value = 0
    for offset, byte in enumerate(raw[position : position + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * offset)
        if byte < 0x80:
            return value, position + offset + 1
    raise ValueError(f"no number at byte {position}")
