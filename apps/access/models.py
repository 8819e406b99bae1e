"""Who may do what: users, teams, memberships with a role, API tokens with scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models
from knox.models import AbstractAuthToken

from apps.lib.ids import uuid7

slug_validator = RegexValidator(r"^[a-z0-9-]{1,63}$", "Use 1 to 63 of a–z, 0–9 and «-».", code="bad_slug")


if TYPE_CHECKING:
    _Text = models.CharField[str, str]  # generic in the stubs alone
else:
    _Text = models.CharField


class SlugField(_Text):
    """A name that may stand in URLs, hosts and files: `[a-z0-9-]{1,63}`."""

    def __init__(self, **kwargs: object) -> None:
        kwargs["max_length"] = 63
        super().__init__(**kwargs)  # type: ignore[arg-type]

    default_validators = [slug_validator]


class Role(models.TextChoices):
    """What a member may do in a team; each role includes the ones before it."""

    VIEWER = "viewer", "Viewer"  # reads everything of the team
    OPERATOR = "operator", "Operator"  # registers versions, starts and stops rollouts
    APPROVER = "approver", "Approver"  # decides on canaries, lifts holds
    ADMIN = "admin", "Admin"  # members, pools, keys

    @property
    def rank(self) -> int:
        return list(Role).index(self)


class Scope(models.TextChoices):
    """What an API token may do, always within its owner's role."""

    READ = "read", "Read everything of the team"
    REGISTRY_WRITE = "registry:write", "Register versions, upload artifacts"
    ROLLOUTS_WRITE = "rollouts:write", "Start, pause and abort rollouts"
    ROLLOUTS_APPROVE = "rollouts:approve", "Approve and reject as the token's owner"
    FLEET_WRITE = "fleet:write", "Create join tokens, cordon nodes"
    FEEDBACK_WRITE = "feedback:write", "Send labels"


class User(AbstractUser):  # type: ignore[django-manager-missing]  # knox's relation has no types
    """A person. Whatever signs as a person counts as that person, API tokens too."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)

    # Not a column: set on the user of a request that came by API token, which reaches into one team only.
    confined_to: UUID | None = None


class Team(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = SlugField(unique=True)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "access_team"

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)

    class Meta:
        db_table = "access_membership"
        constraints = [
            models.UniqueConstraint(fields=["user", "team"], name="access_membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="access_membership_role"),
        ]


class ApiToken(AbstractAuthToken):  # type: ignore[misc]  # knox has no types
    """A secret for CI and scripts, stored hashed (knox). Acts as its owner, within `scopes`."""

    name = models.CharField(max_length=120)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    scopes = ArrayField(models.CharField(max_length=32, choices=Scope.choices))
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "access_apitoken"


class IdempotencyKey(models.Model):
    """The answer given to a write, so that repeating it gives the same answer and no second effect."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_sha256 = models.BinaryField(max_length=32)
    status = models.PositiveSmallIntegerField()  # the row commits with the effect: an unfinished request leaves none
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "access_idempotencykey"
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="access_idempotencykey_once")]
