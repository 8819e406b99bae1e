"""What can go wrong in an engine, each with a stable code and one sentence for whoever must act on it."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the engine's errors: `code` is stable, the sentence says what is wrong, where, and what to do."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class SandboxError(EngineError):
    """The sandbox could not be put in force."""


class LoadError(EngineError):
    """The artifact is sound but this engine can't run it."""


class SpawnError(EngineError):
    """A message to the fork server asks for something that can't be done."""


class RequestError(EngineError):
    """A request is refused; `status` is its HTTP status."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        super().__init__(code, sentence)
        self.status = status
