"""Shapes of the access endpoints."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.access.models import ApiToken, Membership, Scope


class MembershipOut(serializers.ModelSerializer[Membership]):
    team = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]

    class Meta:
        model = Membership
        fields = ["team", "role"]


class MeOut(serializers.Serializer[Any]):
    """Who the request comes from, and what it may do."""

    username = serializers.CharField()
    is_superuser = serializers.BooleanField()
    memberships = MembershipOut(many=True)
    token = serializers.CharField(allow_null=True, help_text="Name of the API token, null for a session.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.choices))


class TokenOut(serializers.ModelSerializer[ApiToken]):
    id = serializers.CharField(source="token_key", read_only=True)
    team = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]

    class Meta:
        model = ApiToken
        fields = ["id", "name", "team", "scopes", "created", "expiry", "last_used_at"]


class TokenIn(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=120)
    team = serializers.SlugField(max_length=63)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.choices), min_length=1)
    expires_in_days = serializers.IntegerField(min_value=1, max_value=366, required=False, default=90)


class TokenCreated(TokenOut):
    secret = serializers.CharField(read_only=True, help_text="Shown this once; kept nowhere.")

    class Meta(TokenOut.Meta):
        fields = [*TokenOut.Meta.fields, "secret"]
