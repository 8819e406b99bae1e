"""Fetching over real HTTP on loopback, with everything that can be wrong at the other end."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aifb.errors import AifbError
from aifb.trust import Deployment
from node.agent.cache import ArtifactCache
from node.agent.client import ControlPlane, Credential
from node.agent.errors import Permanent, Temporary
from node.agent.fetch import Fetcher, HttpRangeSource
from node.agent.identity import load_or_create_key, public_key_b64
from node.agent.trust import TrustStore
from tests.agent.artifacts import publish, write
from tests.agent.keys import Director, manifest_of
from tests.agent.plane import Plane

MIB = 1 << 20


@pytest.fixture
def published(plane: Plane, tmp_path: Path) -> Deployment:
    """An artifact of six chunks."""
    return publish(plane, tmp_path, 1, ballast_bytes=5 * MIB + 1_000)


def _fetcher(plane: Plane, home: Path, *, stall_s: float = 10.0, reserve_bytes: int = 0) -> Fetcher:
    (home / "artifacts").mkdir(parents=True, exist_ok=True)
    key = load_or_create_key(home)
    plane.public_key = base64.b64decode(public_key_b64(key))
    control_plane = ControlPlane(plane.url, key)
    control_plane.credential = Credential(plane.node, 1)
    trust = TrustStore(home / "trust", plane.director.pin)
    trust.accept_root_chain(plane.director.roots)
    source = HttpRangeSource(control_plane, stall_s=stall_s)
    return Fetcher(ArtifactCache(home / "artifacts"), trust, source, reserve_bytes=reserve_bytes)


def _cache(home: Path) -> ArtifactCache:
    return ArtifactCache(home / "artifacts")


def _data_requests(plane: Plane) -> int:
    return sum(path.endswith("/data") for path in plane.seen)


def test_a_whole_artifact_arrives_and_verifies(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    _fetcher(plane, tmp_path / "home").fetch(published)
    cache = _cache(tmp_path / "home")
    assert cache.complete() == {published.digest}
    assert cache.parts() == frozenset()
    assert cache.path(published.digest).read_bytes() == plane.artifacts[published.digest].content
    os.close(cache.open_verified(published.digest))


def test_what_is_cached_is_not_fetched_again(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    fetcher = _fetcher(plane, tmp_path / "home")
    fetcher.fetch(published)
    before = _data_requests(plane)
    fetcher.fetch(published)
    assert _data_requests(plane) == before


def _flip(at: int) -> Callable[[int, bytes], bytes]:
    def spoil(offset: int, content: bytes) -> bytes:
        if not offset <= at < offset + len(content):
            return content
        spoilt = bytearray(content)
        spoilt[at - offset] ^= 1
        return bytes(spoilt)

    return spoil


def test_a_flipped_bit_is_refused_and_the_rest_is_kept(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    plane.spoil_data = _flip(128 + 2 * MIB + 77)
    fetcher = _fetcher(plane, tmp_path / "home")
    with pytest.raises(AifbError) as refused:
        fetcher.fetch(published)
    assert refused.value.code == "chunk_mismatch"
    assert _cache(tmp_path / "home").complete() == frozenset()
    plane.spoil_data, before = None, _data_requests(plane)
    fetcher.fetch(published)
    assert _cache(tmp_path / "home").complete() == {published.digest}
    assert _data_requests(plane) == before + 1  # the chunks before the bad one were not asked for again


def test_a_chunk_that_is_spoilt_once_is_asked_for_again(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    spoil, spoilt = _flip(128 + 3 * MIB + 5), []

    def once(offset: int, content: bytes) -> bytes:
        if spoilt:
            return content
        changed = spoil(offset, content)
        spoilt.extend([True] if changed != content else [])
        return changed

    plane.spoil_data = once
    _fetcher(plane, tmp_path / "home").fetch(published)
    assert spoilt
    assert _cache(tmp_path / "home").complete() == {published.digest}


@pytest.mark.parametrize("kept", [2 * MIB + 500, 100])
def test_a_truncated_file_is_refused(plane: Plane, published: Deployment, tmp_path: Path, kept: int) -> None:
    artifact = plane.artifacts[published.digest]
    artifact.content = artifact.content[:kept]
    with pytest.raises(AifbError) as refused:
        _fetcher(plane, tmp_path / "home").fetch(published)
    assert refused.value.code == "truncated"


def test_a_swapped_file_is_refused(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    other = publish(plane, tmp_path, 2, ballast_bytes=5 * MIB + 1_000)
    plane.artifacts[published.digest].content = plane.artifacts[other.digest].content
    with pytest.raises(AifbError) as refused:
        _fetcher(plane, tmp_path / "home").fetch(published)
    assert refused.value.code == "chunk_mismatch"
    plane.artifacts[published.digest].leaves = plane.artifacts[other.digest].leaves
    with pytest.raises(AifbError) as refused:
        _fetcher(plane, tmp_path / "home").fetch(published)
    assert refused.value.code == "root_mismatch"


def test_a_wrong_manifest_is_refused_before_anything_else_is_asked(
    plane: Plane, published: Deployment, tmp_path: Path
) -> None:
    fetcher = _fetcher(plane, tmp_path / "home")
    cases = {
        "wrong_artifact": manifest_of(replace(published, version=2)),
        "unknown_key": manifest_of(published, signer="stranger"),
        "bad_envelope": b"{}",
    }
    for code, manifest in cases.items():
        plane.artifacts[published.digest].manifest = manifest
        with pytest.raises(AifbError) as refused:
            fetcher.fetch(published)
        assert refused.value.code == code
    assert not any("/leaves" in path or "/data" in path for path in plane.seen)


def test_a_source_that_trickles_is_given_up(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    plane.trickle_s = 0.05
    with pytest.raises(Temporary) as stalled:
        _fetcher(plane, tmp_path / "home", stall_s=0.4).fetch(published)
    assert stalled.value.code == "stalled"


def test_a_source_that_falls_silent_is_given_up(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    plane.trickle_s = 2.0
    with pytest.raises(Temporary) as stalled:
        _fetcher(plane, tmp_path / "home", stall_s=0.3).fetch(published)
    assert stalled.value.code == "stalled"


def test_an_artifact_that_is_not_ours_is_permanent(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    del plane.artifacts[published.digest]
    with pytest.raises(Permanent) as refused:
        _fetcher(plane, tmp_path / "home").fetch(published)
    assert refused.value.code == "not_assigned"


def test_a_full_disk_is_said_before_it_is_filled(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    with pytest.raises(Temporary) as refused:
        _fetcher(plane, tmp_path / "home", reserve_bytes=1 << 60).fetch(published)
    assert refused.value.code == "disk_full"
    assert not any(path.endswith("/data") for path in plane.seen)


def test_a_fetch_that_is_cancelled_stops(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    cancelled = threading.Event()

    def cancel(offset: int, content: bytes) -> bytes:
        cancelled.set()
        return content

    plane.spoil_data = cancel
    with pytest.raises(Temporary) as stopped:
        _fetcher(plane, tmp_path / "home").fetch(published, cancelled.is_set)
    assert stopped.value.code == "cancelled"


def test_a_rotten_file_in_the_cache_is_found_and_deleted(plane: Plane, published: Deployment, tmp_path: Path) -> None:
    fetcher = _fetcher(plane, tmp_path / "home")
    fetcher.fetch(published)
    cache = _cache(tmp_path / "home")
    path = cache.path(published.digest)
    swapped = write(tmp_path / "other.aifb", 9)
    path.unlink()
    swapped.path.rename(path)
    with pytest.raises(AifbError) as refused:
        cache.open_verified(published.digest)
    assert refused.value.code == "root_mismatch"
    assert cache.complete() == frozenset()


CHILD = """
import json, sys
from tests.agent.test_fetch import fetch_in_child
fetch_in_child(json.loads(sys.stdin.read()))
"""


def fetch_in_child(order: dict[str, object]) -> None:
    """What the child process of the crash test runs."""
    director = Director(roots=[base64.b64decode(str(order["root"]))])
    plane = Plane(director=director, node=str(order["node"]), url=str(order["url"]))
    deployment = Deployment(**order["deployment"])  # type: ignore[arg-type]
    _fetcher(plane, Path(str(order["home"]))).fetch(deployment)


@pytest.mark.crash
@pytest.mark.parametrize(("failpoint", "parts", "asked_again"), [("mid_fetch:4", 1, True), ("before_rename", 1, False)])
def test_a_killed_fetch_is_resumed(
    plane: Plane, published: Deployment, tmp_path: Path, failpoint: str, parts: int, asked_again: bool
) -> None:
    home = tmp_path / "home"
    fetcher = _fetcher(plane, home)
    order = {
        "root": base64.b64encode(plane.director.roots[0]).decode(),
        "node": plane.node,
        "url": plane.url,
        "home": str(home),
        "deployment": published.__dict__,
    }
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(order).encode(),
        env={**os.environ, "FARRIER_FAILPOINTS": failpoint},
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert len(_cache(home).parts()) == parts
    assert _cache(home).complete() == frozenset()
    before = _data_requests(plane)
    fetcher.fetch(published)
    assert (_data_requests(plane) > before) is asked_again
    os.close(_cache(home).open_verified(published.digest))
