"""Users, teams and memberships, for superusers; every change reaches the audit log. Tokens are only looked at."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import UserAdmin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from apps.access import services
from apps.access.actors import actor_of, note
from apps.access.forms import AdminSignInForm
from apps.access.models import ApiToken, Membership, Role, Team, User
from apps.lib.look_only import LookOnly

admin.site.login_form = AdminSignInForm


@admin.register(User)
class AuditedUserAdmin(UserAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    """Users are never deleted, since events name them: take their «active» away."""

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            verb = "user.changed" if change else "user.created"
            note(obj, verb, actor=actor_of(request), now=timezone.now(), data={"fields": form.changed_data})

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        """Set another person's password; save_model has no part in it, and an approver's is as good as their word."""
        with transaction.atomic():
            before = User.objects.filter(pk=unquote(id)).values_list("password", flat=True).first()
            answer = super().user_change_password(request, id, form_url)
            user = User.objects.filter(pk=unquote(id)).first()
            if user is not None and user.password != before:
                now = timezone.now()
                note(user, "user.changed", actor=actor_of(request), now=now, data={"fields": ["password"]})
        return answer

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return False


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]  # generic in the stubs alone
    model = Membership
    extra = 0


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs alone
    list_display = ["slug", "name", "created_at"]
    inlines = [MembershipInline]

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        formset.save(commit=False)
        actor, now = actor_of(request), timezone.now()
        with transaction.atomic():
            for gone in formset.deleted_objects:
                services.remove_membership(user=gone.user, team=gone.team, actor=actor, now=now)
            for member in [*formset.new_objects, *(row for row, _ in formset.changed_objects)]:
                services.set_membership(
                    user=member.user, team=member.team, role=Role(member.role), actor=actor, now=now
                )

    def has_delete_permission(self, request: HttpRequest, obj: Team | None = None) -> bool:
        return False


@admin.register(ApiToken)
class ApiTokenAdmin(LookOnly):
    list_display = ["token_key", "name", "user", "team", "scopes", "expiry", "last_used_at"]
    fields = ("token_key", "name", "user", "team", "scopes", "created", "expiry", "last_used_at")
