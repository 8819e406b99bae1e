"""One set of artifacts, one fork server and one engine per model for the whole folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine import support
from tests.engine.support import Artifacts, Engine, ForkServer


@pytest.fixture(scope="session")
def artifacts() -> Artifacts:
    return support.artifacts()


@pytest.fixture(scope="session")
def zygote() -> Iterator[ForkServer]:
    with support.fork_server() as server:
        yield server


@pytest.fixture(scope="session")
def embedder(zygote: ForkServer, artifacts: Artifacts) -> Iterator[Engine]:
    """An engine that serves MiniLM version 1; tests must leave it running."""
    engine = zygote.start(artifacts.minilm["v1"], "minilm-embedder", 1)
    engine.wait_ready()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def classifier(zygote: ForkServer, artifacts: Artifacts) -> Iterator[Engine]:
    """An engine that serves the digit classifier, version 3; tests must leave it running."""
    engine = zygote.start(artifacts.digits, "digit-classifier", 3)
    engine.wait_ready()
    yield engine
    engine.stop()
