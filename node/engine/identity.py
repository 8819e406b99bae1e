"""Who an engine is: the deployment that it was started for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LINEAGE_PARTS = ("model", "data", "env", "build")


@dataclass(frozen=True)
class Identity:
    """A model version on this node; `lineage` holds the four hashes by name, `digest` is 128 hex characters."""

    model: str
    version: int
    digest: str
    lineage: Mapping[str, str]
    deployment: str

    @property
    def lineage_text(self) -> str:
        """The four hashes in their order, joined by underscores: the version's identity."""
        return "_".join(self.lineage[part] for part in LINEAGE_PARTS)

    @property
    def headers(self) -> dict[str, str]:
        """What every response says about who answered."""
        return {
            "x-farrier-model": self.model,
            "x-farrier-version": str(self.version),
            "x-farrier-digest": self.digest,
            "x-farrier-lineage": self.lineage_text,
        }
