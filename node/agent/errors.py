"""Errors of the agent: one sentence, a stable code, and whether trying again can help."""

from __future__ import annotations


class AgentError(Exception):
    """Something that the agent could not do. `code` travels to the node's page together with the sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class Temporary(AgentError):
    """Worth trying again later; `retry_after_s` is the far side's wish, if it stated one."""

    def __init__(self, code: str, sentence: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(code, sentence)
        self.retry_after_s = retry_after_s


class Permanent(AgentError):
    """Trying the same again can't help: a person or a newer assignment must change something.

    `status` is the HTTP status, where the control plane refused.
    """

    def __init__(self, code: str, sentence: str, *, status: int | None = None) -> None:
        super().__init__(code, sentence)
        self.status = status


class NodePending(Temporary):
    """The node has enrolled, and waits for a person or a pool rule to accept it."""


class CredentialStale(Temporary):
    """The credential has expired or a newer generation is in use: renewing may help."""
