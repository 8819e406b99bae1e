"""REST of alerts: list, acknowledge, hand over; silences; the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access.actors import actor_of, user_of
from apps.access.idempotency import idempotent
from apps.access.models import Scope
from apps.access.selectors import working_team
from apps.lib.errors import DomainError
from apps.models.api import checked
from apps.observability import alert_selectors as selectors
from apps.observability import alert_services as services
from apps.observability.alert_models import Alert, AlertRule, AlertState, Silence
from apps.observability.alert_serializers import (
    AlertCommandIn,
    AlertOut,
    AlertRuleOut,
    SilenceEndIn,
    SilenceIn,
    SilenceOut,
)

_FILTERS = [
    OpenApiParameter(
        "state",
        str,
        enum=[selectors.OPEN, *AlertState.values, selectors.ALL],
        description="`open` (the default): pending, firing and no data.",
    ),
    OpenApiParameter("severity", str, enum=["page", "ticket"]),
    OpenApiParameter("rule", str, description="Such as «gpu-temperature»."),
    OpenApiParameter("node", str, description="Name of the node, or of the model."),
]


class AlertList(ListAPIView[Alert]):
    """Your teams' alerts, the most urgent first. The heartbeat is not among them: it goes to webhooks only."""

    queryset = Alert.objects.none()  # tells the OpenAPI document the type
    serializer_class = AlertOut

    def get_queryset(self) -> QuerySet[Alert]:
        asked = {name: self.request.query_params.get(name, "") for name in ("severity", "rule", "node")}
        state = self.request.query_params.get("state") or selectors.OPEN
        if state not in (selectors.OPEN, selectors.ALL, *AlertState.values):
            raise DomainError("bad_parameter", f"«?state={state[:20]}» is none of open, pending, firing, no_data, "
                              "resolved, all.")  # fmt: skip
        return selectors.by_urgency(selectors.narrowed(selectors.alerts_for(self.request.user), state=state, **asked))

    @extend_schema(parameters=_FILTERS)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List them; filters may be combined."""
        return super().get(request, *args, **kwargs)


class AlertView(APIView):
    """One alert with its GPUs."""

    @extend_schema(responses=AlertOut)
    def get(self, request: Request, pk: UUID) -> Response:
        return Response(AlertOut(selectors.get_alert(request.user, pk)).data)


class _Command(APIView):
    """What a person does to one alert; subclasses name the service."""

    perform: ClassVar[Callable[..., object]]
    write_scope = Scope.FLEET_WRITE

    @extend_schema(request=AlertCommandIn, responses=AlertOut)
    @idempotent
    def post(self, request: Request, pk: UUID) -> Response:
        """Twice is as good as once. With `expected_revision` it is refused (409) when the alert's state moved on."""
        user = user_of(request)
        fields = checked(AlertCommandIn(data=request.data))
        found = selectors.get_alert(user, pk)
        type(self).perform(found, actor=actor_of(request), now=timezone.now(), **fields)
        return Response(AlertOut(selectors.get_alert(user, pk)).data)


class Acknowledge(_Command):
    """Say that somebody is on it: it is not repeated any more."""

    perform = staticmethod(services.acknowledge_alert)


class Unacknowledge(_Command):
    """Hand it back: it is repeated again."""

    perform = staticmethod(services.unacknowledge_alert)


class Own(_Command):
    """Take it over."""

    perform = staticmethod(services.own_alert)


class SilenceList(ListAPIView[Silence]):
    """What is muted, by whom, why and until when."""

    queryset = Silence.objects.none()  # tells the OpenAPI document the type
    serializer_class = SilenceOut
    write_scope = Scope.FLEET_WRITE

    def get_queryset(self) -> QuerySet[Silence]:
        rows = selectors.silences_for(self.request.user)
        active = self.request.query_params.get("active")
        if active not in ("true", "false"):
            return rows
        return selectors.in_force(rows, timezone.now(), over=active == "false")

    @extend_schema(
        parameters=[OpenApiParameter("active", bool, description="`true`: in force or to come; `false`: over.")]
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List them, the one that ends last first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=SilenceIn, responses={201: SilenceOut})
    @idempotent
    def post(self, request: Request) -> Response:
        """Mute what matches until it expires, at most 30 days; what still fires then is told anew."""
        fields = checked(SilenceIn(data=request.data))
        silence = services.create_silence(
            team=working_team(user_of(request), request.query_params.get("team", "")),
            actor=actor_of(request),
            now=timezone.now(),
            **fields,
        )
        return Response(SilenceOut(selectors.get_silence(request.user, silence.pk)).data, status=201)


class SilenceEnd(APIView):
    """End a silence before its time, for a reason."""

    write_scope = Scope.FLEET_WRITE

    @extend_schema(operation_id="silences_end", request=SilenceEndIn, responses=SilenceOut)
    @idempotent
    def post(self, request: Request, pk: UUID) -> Response:
        fields = checked(SilenceEndIn(data=request.data))
        silence = selectors.get_silence(request.user, pk)
        services.end_silence(silence, actor=actor_of(request), now=timezone.now(), **fields)
        return Response(SilenceOut(selectors.get_silence(request.user, pk)).data)


class AlertRuleList(ListAPIView[AlertRule]):
    """What raises alerts on this installation. Admins edit the rules in the admin pages."""

    queryset = AlertRule.objects.order_by("slug")
    serializer_class = AlertRuleOut
