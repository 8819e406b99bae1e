"""What a new installation needs before anybody can sign in. Every step looks first and adds only what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from django.conf import settings
from knox.crypto import hash_token

from aifb import signing
from aifb.trust import ROOT_TYPE, make_root
from apps.access import services as access
from apps.access.actors import SYSTEM, Actor
from apps.access.models import ApiToken, Membership, Role, Scope, Team, User
from apps.audit import keys as audit_keys
from apps.fleet import services as fleet
from apps.fleet.models import Node, NodePhase, Pool
from apps.models import services as registry
from apps.models.models import TrustRoot
from apps.rollouts.services import ensure_default_strategies
from controlplane.settings import Env

ROLES = {"requester": Role.OPERATOR, "lead": Role.APPROVER, "oncall": Role.OPERATOR, "admin": Role.ADMIN}
CI_SCOPES = [Scope.READ, Scope.REGISTRY_WRITE, Scope.ROLLOUTS_WRITE, Scope.FEEDBACK_WRITE]
ROOT_LIFE = timedelta(days=365)
KEY_ROLES = ("root", "release", "director")
Say = Callable[[str], object]


@dataclass(frozen=True)
class Bootstrap:
    """One run: the settings, the secrets file, the time, and where to tell what was done."""

    env: Env
    secrets: Path
    now: datetime
    say: Say

    def run(self) -> None:
        """Bring everything into being that is missing; running it again changes nothing."""
        team = self._team()
        self._users(team)
        self._trust()
        self._audit_key()
        self._ci_token(team)
        pool = self._pool(team)
        self._strategies(team)
        self._join_tokens(pool)

    def _team(self) -> Team:
        team = Team.objects.filter(slug="default").first()
        if team is None:
            team = access.create_team(slug="default", name="Default", actor=SYSTEM, now=self.now)
            self.say("Made the team «default».")
        return team

    def _users(self, team: Team) -> None:
        """Passwords come from the secrets file; of a user who exists it may have been changed, and is left alone."""
        passwords = self._read_secrets()["users"]
        for name, role in ROLES.items():
            user = User.objects.filter(username=name).first()
            if user is None:
                user = access.create_user(
                    username=name, password=passwords[name], superuser=name == "admin", actor=SYSTEM, now=self.now
                )
                self.say(f"Made the user «{name}» ({role.label.lower()}).")
            if not Membership.objects.filter(user=user, team=team).exists():
                access.set_membership(user=user, team=team, role=role, actor=SYSTEM, now=self.now)

    def _trust(self) -> None:
        """Keys are made only together with the first root: a later root may know others, kept elsewhere."""
        if TrustRoot.objects.exists():
            return
        keys = {role: self._rsa_key(role) for role in KEY_ROLES}
        payload = make_root(
            version=1,
            expires=self.now + ROOT_LIFE,
            director_epoch=1,
            roles={role: [key.public_key()] for role, key in keys.items()},
        )
        envelope = signing.sign(payload, ROOT_TYPE, [keys["root"]])
        registry.add_root(envelope=envelope, actor=SYSTEM, now=self.now)
        self.say("Signed trust root 1. Move keys/root and keys/release off this machine before real use.")

    def _rsa_key(self, role: str) -> RSAPrivateKey:
        path = self.env.home / "keys" / role / f"{role}.pem"
        if not path.exists():
            write_secret(path, signing.private_key_pem(signing.generate_key()))
        return signing.load_private_key(path.read_bytes())

    def _audit_key(self) -> None:
        path = audit_keys.key_path()
        if not path.exists():
            write_secret(path, audit_keys.new_key_pem())

    def _ci_token(self, team: Team) -> None:
        secrets = self._read_secrets()
        known = secrets.get("ci_token", "")
        if known and ApiToken.objects.filter(digest=hash_token(known)).exists():
            return
        _, secret = access.create_api_token(
            user=User.objects.get(username="requester"),
            team=team,
            name="ci",
            scopes=CI_SCOPES,
            actor=SYSTEM,
            now=self.now,
        )
        write_secret(self.secrets, json.dumps(secrets | {"ci_token": secret}, indent=1).encode())
        self.say("Made an API token for CI.")

    def _pool(self, team: Team) -> Pool:
        pool = Pool.objects.filter(slug="default").first()
        if pool is not None:
            return pool
        return fleet.create_pool(
            team=team,
            slug="default",
            auto_accept=True,
            poll_interval_s=self.env.poll_interval_s,
            actor=SYSTEM,
            now=self.now,
        )

    def _strategies(self, team: Team) -> None:
        ensure_default_strategies(team)

    def _join_tokens(self, pool: Pool) -> None:
        """A fresh single-use token for every node of this machine that has not enrolled."""
        actor = Actor.person(User.objects.get(username="admin"))
        out = (NodePhase.REJECTED, NodePhase.BANNED)
        enrolled = set(Node.objects.exclude(phase__in=out).values_list("name", flat=True))
        for number in range(1, self.env.nodes + 1):
            name = f"node-{number}"
            if name in enrolled:
                continue
            token = fleet.create_join_token(pool=pool, node_name=name, actor=actor, now=self.now)
            write_secret(self.env.home / "nodes" / name / "join-token", f"{token}\n".encode())
            self.say(f"Made a join token for {name}.")

    def _read_secrets(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.secrets.read_text())
        return content


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def bootstrap(*, secrets: Path, now: datetime, say: Say) -> None:
    """Run every step for the installation that the settings describe."""
    Bootstrap(settings.FARRIER, secrets, now, say).run()
