"""Errors that a person or a program may see: one sentence, a stable code, an HTTP status."""

from __future__ import annotations


class DomainError(Exception):
    """Something the caller can mend. Nothing was changed when it is raised.

    `code` is stable and machine-readable, `sentence` says what is wrong, where, and what to do.
    """

    status = 400

    def __init__(self, code: str, sentence: str, *, status: int | None = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        if status is not None:
            self.status = status


class NotFound(DomainError):
    status = 404


class Forbidden(DomainError):
    status = 403


class Conflict(DomainError):
    """The object has moved on since the caller looked, or the request contradicts its state."""

    status = 409


class Temporary(Exception):
    """Worth trying again later: the far side is away or busy."""
