"""From a reserved number to a published version, as the CLI does it over HTTP; and everything that must be refused."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from aifb import signing
from aifb.importers.pack import Packed
from aifb.trust import Root
from apps.access.models import Team, User
from apps.audit.models import Event
from apps.models import store
from apps.models.models import Artifact, ModelVersion, StoredBlob
from tests.artifacts import Keys, pack, signed_manifest, with_lineage

pytestmark = pytest.mark.django_db
Api = Callable[..., APIClient]
FORMAT = "application/octet-stream"


@pytest.fixture
def client(api: Api, operator: User, team: Team, trust_root: Root) -> APIClient:
    return api(operator, team)


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    return pack(tmp_path / "a.aifb", seed=1)


def upload(client: APIClient, digest: str, body: bytes, **extra: Any) -> Any:
    return client.generic("PUT", f"/api/v1/artifacts/{digest}", body, content_type=FORMAT, **extra)


def reserve(client: APIClient, slug: str = "digits") -> int:
    answer = client.post(f"/api/v1/models/{slug}/versions:reserve", {"task": "classification"}, format="json")
    assert answer.status_code == 201, answer.json()
    return int(answer.json()["number"])


def publication(packed: Packed, envelope: bytes, **changes: Any) -> dict[str, Any]:
    return {
        "digest": packed.written.digest,
        "manifest": base64.b64encode(envelope).decode(),
        "lineage_inputs": packed.inputs.as_dict(),
        "graph_hash": packed.graph_hash,
        "baseline_metrics": {"auc": 0.99},
        "precision": "float32",
    } | changes


def publish(client: APIClient, number: int, body: dict[str, Any]) -> Any:
    return client.post(f"/api/v1/models/digits/versions/{number}:publish", body, format="json")


def refused(answer: Any) -> tuple[int, str]:
    assert answer["Content-Type"] == "application/problem+json", answer.content
    return answer.status_code, answer.json()["code"]


def test_reserve_upload_publish(client: APIClient, packed: Packed, keys: Keys) -> None:
    number = reserve(client)
    assert upload(client, packed.written.digest, packed.written.path.read_bytes()).status_code == 201
    answer = publish(client, number, publication(packed, signed_manifest(packed, "digits", number, keys.release)))
    assert answer.status_code == 201, answer.json()
    version = answer.json()
    assert version["state"] == "published"
    assert version["lineage"] == packed.lineage.identity
    assert version["baseline_metrics"] == {"auc": 0.99}
    assert version["artifacts"][0]["digest"] == packed.written.digest
    assert version["artifacts"][0]["signed_by"] == signing.keyid(keys.release.public_key())
    stored = store.path_of(packed.written.digest)
    assert stored.read_bytes() == packed.written.path.read_bytes()
    assert stored.stat().st_mode & 0o777 == 0o444
    blob = StoredBlob.objects.get()
    assert (blob.model_hash, blob.graph_hash) == (packed.lineage.model, packed.graph_hash)
    assert blob.tensors[0]["name"] == "w"
    assert list(Event.objects.order_by("id").values_list("verb", flat=True)[4:]) == [
        "token.created", "model.created", "version.reserved", "artifact.stored", "modelversion.published",
    ]  # fmt: skip


def test_the_same_artifact_again_is_answered_at_once(client: APIClient, packed: Packed) -> None:
    body = packed.written.path.read_bytes()
    assert upload(client, packed.written.digest, body).status_code == 201
    assert upload(client, packed.written.digest, body).status_code == 200
    assert client.get(f"/api/v1/artifacts/{packed.written.digest}").json()["total_bytes"] == len(body)
    assert StoredBlob.objects.count() == 1


def test_a_lost_file_is_taken_in_again(client: APIClient, packed: Packed) -> None:
    body = packed.written.path.read_bytes()
    upload(client, packed.written.digest, body)
    store.path_of(packed.written.digest).unlink()
    assert upload(client, packed.written.digest, body).status_code == 200
    assert store.path_of(packed.written.digest).read_bytes() == body


def nothing_is_left(home: Path) -> bool:
    return not StoredBlob.objects.exists() and not [path for path in home.rglob("*") if path.is_file()]


def test_wrong_digest(client: APIClient, packed: Packed, home: Path) -> None:
    assert refused(upload(client, "0" * 128, packed.written.path.read_bytes())) == (422, "root_mismatch")
    assert nothing_is_left(home)


@pytest.mark.parametrize("digest", ["abc", "A" * 128, "0" * 127, "..%2f..%2fetc"])
def test_malformed_digest(client: APIClient, digest: str) -> None:
    assert upload(client, digest, b"x").status_code in (400, 404)


def test_a_flipped_bit(client: APIClient, packed: Packed, home: Path) -> None:
    body = bytearray(packed.written.path.read_bytes())
    body[-1] ^= 1
    assert refused(upload(client, packed.written.digest, bytes(body))) == (422, "root_mismatch")
    assert nothing_is_left(home)


def test_truncated_body(client: APIClient, packed: Packed, home: Path) -> None:
    body = packed.written.path.read_bytes()
    broken = {"wsgi.input": io.BytesIO(body[:-1])}  # the connection ends one byte early
    answer = upload(client, packed.written.digest, body, **broken)
    assert refused(answer) == (400, "truncated")
    assert nothing_is_left(home)


@pytest.mark.parametrize("change", [-1, +1])
def test_a_length_that_is_not_the_header_s(client: APIClient, packed: Packed, home: Path, change: int) -> None:
    body = packed.written.path.read_bytes() + b"\0"
    answer = upload(client, packed.written.digest, body[: packed.written.total_bytes + change])
    assert refused(answer) == (422, "length_mismatch")
    assert nothing_is_left(home)


def test_not_an_artifact(client: APIClient, packed: Packed, home: Path) -> None:
    assert refused(upload(client, packed.written.digest, os.urandom(4096))) == (422, "bad_magic")
    assert refused(upload(client, packed.written.digest, b"tiny")) == (422, "truncated")
    assert nothing_is_left(home)


def test_without_a_length(client: APIClient, packed: Packed) -> None:
    assert refused(upload(client, packed.written.digest, b"")) == (411, "length_required")


def test_limits_are_judged_before_the_body_is_read(client: APIClient, packed: Packed, settings: Any) -> None:
    body = packed.written.path.read_bytes()
    real = settings.FARRIER
    settings.FARRIER = real.model_copy(update={"max_artifact_bytes": len(body) - 1})
    assert refused(upload(client, packed.written.digest, body)) == (413, "too_large")
    settings.FARRIER = real.model_copy(update={"team_artifact_bytes": len(body) - 1})
    assert refused(upload(client, packed.written.digest, body)) == (413, "quota_exceeded")


@pytest.fixture
def ready(client: APIClient, packed: Packed) -> int:
    """A reserved number with its artifact uploaded."""
    number = reserve(client)
    upload(client, packed.written.digest, packed.written.path.read_bytes())
    return number


def still_reserved(number: int) -> bool:
    return ModelVersion.objects.get(number=number).state == "reserved" and not Artifact.objects.exists()


def test_a_foreign_key_s_signature(client: APIClient, packed: Packed, ready: int, keys: Keys) -> None:
    for key in (signing.generate_key(), keys.director):
        envelope = signed_manifest(packed, "digits", ready, key)
        assert refused(publish(client, ready, publication(packed, envelope))) == (422, "unknown_key")
    assert still_reserved(ready)


def test_a_broken_signature(client: APIClient, packed: Packed, ready: int, keys: Keys) -> None:
    good = signed_manifest(packed, "digits", ready, keys.release)
    other = signed_manifest(packed, "digits", ready + 1, keys.release)
    swapped = good.replace(good.split(b'"payload":"')[1].split(b'"')[0], other.split(b'"payload":"')[1].split(b'"')[0])
    assert refused(publish(client, ready, publication(packed, swapped))) == (422, "bad_signature")
    assert refused(publish(client, ready, publication(packed, b"{}"))) == (422, "bad_envelope")
    assert still_reserved(ready)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": 9}, "wrong_version"),
        ({"model": "other"}, "wrong_version"),
        ({"digest": "0" * 128}, "artifact_missing"),
        ({"length": 1}, "length_mismatch"),
        ({"flat_sha3_512": "0" * 128}, "flat_mismatch"),
    ],
)
def test_a_manifest_of_something_else(
    client: APIClient, packed: Packed, ready: int, keys: Keys, changes: dict[str, Any], code: str
) -> None:
    fields = {"model": "digits", "number": ready} | {"number": changes.pop("version", ready)}
    fields["model"] = changes.pop("model", "digits")
    envelope = signed_manifest(packed, fields["model"], fields["number"], keys.release, **changes)
    assert refused(publish(client, ready, publication(packed, envelope))) == (422, code)
    assert still_reserved(ready)


def test_a_model_hash_that_is_not_the_stored_tensors(client: APIClient, packed: Packed, ready: int, keys: Keys) -> None:
    lineage = with_lineage(packed, model="0" * 64)
    envelope = signed_manifest(packed, "digits", ready, keys.release, lineage=lineage)
    assert refused(publish(client, ready, publication(packed, envelope))) == (422, "model_hash_mismatch")


@pytest.mark.parametrize("part", ["model", "data", "env", "build"])
def test_inputs_that_do_not_lead_to_the_signed_hash(
    client: APIClient, packed: Packed, ready: int, keys: Keys, part: str
) -> None:
    inputs = packed.inputs.as_dict()
    inputs[part] = inputs[part] | {"smuggled": "1"}
    envelope = signed_manifest(packed, "digits", ready, keys.release)
    answer = publish(client, ready, publication(packed, envelope, lineage_inputs=inputs))
    assert refused(answer) == (422, "lineage_mismatch")
    assert still_reserved(ready)


def test_another_graph_hash(client: APIClient, packed: Packed, ready: int, keys: Keys) -> None:
    envelope = signed_manifest(packed, "digits", ready, keys.release)
    answer = publish(client, ready, publication(packed, envelope, graph_hash="0" * 64))
    assert refused(answer) == (422, "graph_hash_mismatch")


@pytest.mark.parametrize(
    "changes",
    [{"manifest": "not base64!"}, {"lineage_inputs": {"model": {}}}, {"lineage_inputs": []}, {"baseline_metrics": 1}],
)
def test_a_malformed_publication(client: APIClient, packed: Packed, ready: int, changes: dict[str, Any]) -> None:
    assert refused(publish(client, ready, publication(packed, b"x", **changes))) == (400, "invalid")


def test_published_is_final(client: APIClient, packed: Packed, ready: int, keys: Keys) -> None:
    body = publication(packed, signed_manifest(packed, "digits", ready, keys.release))
    assert publish(client, ready, body).status_code == 201
    assert refused(publish(client, ready, body)) == (409, "illegal_move")


def test_one_digest_is_one_version(client: APIClient, packed: Packed, ready: int, keys: Keys) -> None:
    publish(client, ready, publication(packed, signed_manifest(packed, "digits", ready, keys.release)))
    second = reserve(client)
    answer = publish(client, second, publication(packed, signed_manifest(packed, "digits", second, keys.release)))
    assert refused(answer) == (409, "digest_published")
    assert ModelVersion.objects.get(number=second).state == "reserved"


def test_numbers_rise_and_the_slug_is_checked(client: APIClient) -> None:
    assert [reserve(client), reserve(client), reserve(client, "other-model")] == [1, 2, 1]
    answer = client.post("/api/v1/models/Not_A_Slug/versions:reserve", {}, format="json")
    assert refused(answer) == (400, "bad_slug")
