"""`farrier push` and what it leaves behind, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aifb.signing import generate_key, private_key_pem
from aifb.trust import Root
from apps.access.models import Team, User
from apps.models.models import ModelVersion, StoredBlob, VersionState
from tests.cli.conftest import Farrier

RECIPE = "tests.cli.recipes:digits"


@pytest.fixture(autouse=True)
def _server(team: Team, operator: User, trust_root: Root) -> None:
    """A team with an operator and a trust root."""


def test_a_pushed_version_is_published_with_its_lineage(farrier: Farrier, release_key: Path) -> None:
    pushed = farrier("push", "digits", "--recipe", RECIPE, "--key", str(release_key), "--notes", "first")
    assert pushed.returncode == 0, pushed.stderr
    assert "digits v1 published" in pushed.stdout
    version = ModelVersion.objects.get(model__slug="digits", number=1)
    assert version.state == VersionState.PUBLISHED
    assert version.notes == "first"
    assert version.baseline_metrics["auc"] > 0.5
    assert all(len(part) == 64 for part in version.lineage.split("_"))
    listed = farrier("versions", "digits", "--json")
    assert [row["number"] for row in json.loads(listed.stdout)] == [1]


def test_the_same_weights_again_are_refused_by_their_digest(farrier: Farrier, release_key: Path) -> None:
    assert farrier("push", "digits", "--recipe", RECIPE, "--key", str(release_key)).returncode == 0
    again = farrier("push", "digits", "--recipe", RECIPE, "--key", str(release_key))
    assert again.returncode == 1
    assert again.stderr.count("farrier:") == 1
    assert ModelVersion.objects.filter(state=VersionState.PUBLISHED).count() == 1


def test_a_foreign_key_publishes_nothing(farrier: Farrier, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.pem"
    foreign.write_bytes(private_key_pem(generate_key()))
    refused = farrier("push", "digits", "--recipe", RECIPE, "--key", str(foreign))
    assert refused.returncode == 1
    assert "unknown_key" in refused.stderr or "bad_signature" in refused.stderr
    assert not ModelVersion.objects.filter(state=VersionState.PUBLISHED).exists()


def test_a_recipe_that_fails_reserves_no_number(farrier: Farrier, release_key: Path) -> None:
    failed = farrier("push", "digits", "--recipe", "tests.cli.recipes:broken", "--key", str(release_key))
    assert failed.returncode == 1
    assert "the training data is gone" in failed.stderr
    assert not ModelVersion.objects.exists()
    assert not StoredBlob.objects.exists()


@pytest.mark.parametrize("recipe", ["no.such.module:build", "tests.cli.recipes:nothing"])
def test_a_recipe_that_is_not_there_is_a_usage_error(farrier: Farrier, release_key: Path, recipe: str) -> None:
    refused = farrier("push", "digits", "--recipe", recipe, "--key", str(release_key))
    assert refused.returncode == 2
    assert refused.stderr.startswith("farrier:")


def test_without_a_token_nothing_is_sent(farrier: Farrier, release_key: Path) -> None:
    refused = farrier("push", "digits", "--recipe", RECIPE, "--key", str(release_key), token="")
    assert refused.returncode == 2
    assert "FARRIER_TOKEN" in refused.stderr


def test_a_wrong_token_is_refused_in_one_sentence(farrier: Farrier) -> None:
    refused = farrier("models", token="0123456789")
    assert refused.returncode == 1
    assert refused.stderr.startswith("farrier:")
    assert "Traceback" not in refused.stderr


def test_an_address_where_nothing_listens_is_named(farrier: Farrier) -> None:
    away = farrier("models", server="http://127.0.0.1:9")
    assert away.returncode == 1
    assert "http://127.0.0.1:9 does not answer" in away.stderr
