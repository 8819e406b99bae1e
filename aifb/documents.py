"""Strict JSON for signed documents: no duplicate keys, no floats, no unknown fields, every value of its stated form."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NoReturn, cast

from aifb.errors import AifbError

MAX_DOCUMENT_BYTES = 1 << 20
MAX_INTEGER = (1 << 63) - 1

HEX_64 = re.compile(r"[0-9a-f]{64}")
HEX_128 = re.compile(r"[0-9a-f]{128}")
SLUG = re.compile(r"[a-z0-9-]{1,63}")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


def canonical(value: object) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII: the same value always makes the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def format_time(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds and `Z`; `moment` must know its time zone."""
    if moment.tzinfo is None:
        raise ValueError("a signed document needs a time with a time zone")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse(raw: bytes, where: str) -> object:
    """Parse strict JSON; raises AifbError(bad_document)."""
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise AifbError("bad_document", f"{where} has {len(raw)} bytes, {MAX_DOCUMENT_BYTES} at most.")

    def refuse(text: str) -> NoReturn:
        raise AifbError("bad_document", f"{where} contains {text[:40]!r}, but its numbers are integers.")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise AifbError("bad_document", f"{where} gives a key twice.")
        return found

    try:
        return cast(
            object,
            json.loads(raw.decode(), object_pairs_hook=unique, parse_float=refuse, parse_constant=refuse),
        )
    except (ValueError, RecursionError) as error:
        raise AifbError("bad_document", f"{where} is not valid JSON in UTF-8.") from error


def decode_base64(value: object, where: str) -> bytes:
    """Decode base64 text in its one canonical spelling; raises AifbError(bad_document)."""
    try:
        if isinstance(value, str):
            content = base64.b64decode(value, validate=True)
            if base64.b64encode(content).decode() == value:
                return content
    except ValueError as error:
        raise AifbError("bad_document", f"{where} holds something that is not base64.") from error
    raise AifbError("bad_document", f"{where} holds something that is not base64 text in its usual spelling.")


class Fields:
    """One JSON object with exactly the fields that are expected, read one by one with their forms checked."""

    def __init__(self, value: object, where: str, names: str) -> None:
        expected = set(names.split())
        if not isinstance(value, dict) or set(value) != expected:
            raise AifbError("bad_document", f"{where} must be an object with exactly these fields: {names}.")
        self._values: Mapping[str, object] = value
        self.where = where

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Raise AifbError(bad_document) about one field."""
        raise AifbError("bad_document", f"{self.where}: {name} must be {wanted}.")

    def raw(self, name: str) -> object:
        """The value as it was parsed."""
        return self._values[name]

    def is_null(self, name: str) -> bool:
        """Whether the field is there and says nothing."""
        return self._values[name] is None

    def text(self, name: str, form: re.Pattern[str], wanted: str) -> str:
        """A string that matches `form` as a whole."""
        value = self._values[name]
        if not isinstance(value, str) or not form.fullmatch(value):
            self.refuse(name, wanted)
        return value

    def literal(self, name: str, *allowed: str) -> str:
        """A string that is one of `allowed`."""
        value = self._values[name]
        if not isinstance(value, str) or value not in allowed:
            self.refuse(name, " or ".join(map(repr, allowed)))
        return value

    def integer(self, name: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        """An integer from `low` to `high`."""
        value = self._values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(name, f"an integer from {low} to {high}")
        return value

    def time(self, name: str) -> datetime:
        """A moment in UTC."""
        value = self.text(name, _TIME, "a time such as 2030-01-31T12:00:00Z")
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.refuse(name, "a time such as 2030-01-31T12:00:00Z")

    def items(self, name: str, most: int) -> list[object]:
        """A list of at most `most` items."""
        value = self._values[name]
        if not isinstance(value, list) or len(value) > most:
            self.refuse(name, f"a list of at most {most}")
        return value

    def mapping(self, name: str, most: int) -> Mapping[str, object]:
        """An object of at most `most` members, any names."""
        value = self._values[name]
        if not isinstance(value, dict) or len(value) > most:
            self.refuse(name, f"an object of at most {most} members")
        return value
