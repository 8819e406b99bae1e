"""Two real engines of the embedder and one of the classifier, for comparators to replay to."""

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
def embedders(zygote: ForkServer, artifacts: Artifacts) -> dict[str, Engine]:
    """Versions 1 (float32), 2 (int8 per row) and 3 (int8 per tensor), all serving."""
    engines = {
        name: zygote.start(packed, "minilm-embedder", int(name[1:])) for name, packed in artifacts.minilm.items()
    }
    for engine in engines.values():
        engine.wait_ready()
    return engines


@pytest.fixture(scope="session")
def classifier(zygote: ForkServer, artifacts: Artifacts) -> Engine:
    engine = zygote.start(artifacts.digits, "digit-classifier", 1)
    engine.wait_ready()
    return engine
