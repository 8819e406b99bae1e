"""Verified artifacts on this node's disk: `<digest>.aifb`, complete or not there at all."""

from __future__ import annotations

import os
import re
from hmac import compare_digest
from pathlib import Path

from aifb import tree
from aifb.errors import AifbError

_COMPLETE = re.compile(r"([0-9a-f]{128})\.aifb")
_PART = re.compile(r"([0-9a-f]{128})\.(?:part|map)")


class ArtifactCache:
    """The artifact folder of one agent home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where the complete artifact lies."""
        return self.folder / f"{digest}.aifb"

    def part(self, digest: str) -> Path:
        """Where an artifact grows while it is fetched."""
        return self.folder / f"{digest}.part"

    def map(self, digest: str) -> Path:
        """One byte for each chunk of the part: 1 once it has been written. A hint; a resumed part is hashed again."""
        return self.folder / f"{digest}.map"

    def complete(self) -> frozenset[str]:
        """Digests of the complete artifacts."""
        return self._digests(_COMPLETE)

    def parts(self) -> frozenset[str]:
        """Digests of artifacts of which only a part is here."""
        return self._digests(_PART)

    def open_verified(self, digest: str) -> int:
        """Open an artifact and verify the very file that was opened; the caller closes the descriptor.

        A file whose bytes don't lead to `digest` is deleted, so that it is fetched anew.
        Raises AifbError: root_mismatch and the codes of tree.compute_root; FileNotFoundError.
        """
        path = self.path(digest)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not compare_digest(tree.compute_root(fd), bytes.fromhex(digest)):
                raise AifbError(
                    "root_mismatch", f"The cached file of {digest[:12]}… is not what was verified when it was fetched."
                )
        except AifbError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return fd

    def evict(self, digest: str) -> None:
        """Delete an artifact and whatever part of it is here."""
        for path in (self.path(digest), self.part(digest), self.map(digest)):
            path.unlink(missing_ok=True)

    def _digests(self, form: re.Pattern[str]) -> frozenset[str]:
        matches = (form.fullmatch(entry.name) for entry in self.folder.iterdir())
        return frozenset(match[1] for match in matches if match)
