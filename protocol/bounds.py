"""How many fields a protobuf message has, told from its bytes: to a parser two of them can mean a whole object."""

from __future__ import annotations

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10


def has_more_fields_than(raw: bytes, limit: int) -> bool:
    """Tell whether the message has more than `limit` fields of its own, looking no further than it must.

    Fields inside its fields don't count. Raises ValueError for bytes that are no message, groups among them.
    """
    position, count = 0, 0
    while position < len(raw):
        count += 1
        if count > limit:
            return True
        tag, position = _varint(raw, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(raw, position)
        elif kind == _BYTES:
            length, position = _varint(raw, position)
            position += length
        elif kind in _FIXED:
            position += _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} at byte {position}")
    if position > len(raw):
        raise ValueError("the last field ends beyond the message")
    return False


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    """Return the number that begins at `position`, and where it ends."""
    value = 0
    for offset, byte in enumerate(raw[position : position + _VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * offset)
        if byte < 0x80:
            return value, position + offset + 1
    raise ValueError(f"no number at byte {position}")
