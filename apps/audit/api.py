"""REST of the audit log, and of who is told what happens."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access.actors import actor_of, user_of
from apps.access.selectors import working_team
from apps.audit import selectors, services
from apps.audit.models import Event, Outbox, Webhook
from apps.audit.serializers import DeliveryOut, EventOut, WebhookCreated, WebhookIn, WebhookOut
from apps.lib.params import time_param

FILTERS = [
    OpenApiParameter("verb", str, description="Such as «rollout.approved»; with a dot at its end, all that begin so."),
    OpenApiParameter("object_type", str, description="Such as «registry.modelversion»."),
    OpenApiParameter("object_id", str),
    OpenApiParameter("actor", str, description="A username."),
    OpenApiParameter("since", str, description="ISO 8601, inclusive."),
    OpenApiParameter("until", str, description="ISO 8601, exclusive."),
]


class EventList(ListAPIView[Event]):
    """What happened in your teams, newest first."""

    queryset = Event.objects.none()  # tells the OpenAPI document the type
    serializer_class = EventOut

    @extend_schema(operation_id="audit_list", parameters=FILTERS)
    def get(self, request: Request) -> Response:
        return self.list(request)

    def get_queryset(self) -> QuerySet[Event]:
        asked = self.request.query_params
        return selectors.events_for(
            self.request.user,
            **{name: asked.get(name, "") for name in ("verb", "object_type", "object_id", "actor")},
            since=time_param(self.request, "since"),
            until=time_param(self.request, "until"),
        )


class WebhookList(ListAPIView[Webhook]):
    """Where your teams are told, by signed requests. Made by their admins, in a session."""

    queryset = Webhook.objects.none()  # tells the OpenAPI document the type
    serializer_class = WebhookOut
    write_scope = None

    def get_queryset(self) -> QuerySet[Webhook]:
        return selectors.webhooks_for(self.request.user)

    @extend_schema(request=WebhookIn, responses={201: WebhookCreated})
    def post(self, request: Request) -> Response:
        """Add one; the answer is the only place where its secret appears."""
        wanted = WebhookIn(data=request.data)
        wanted.is_valid(raise_exception=True)
        hook, secret = services.create_webhook(
            team=working_team(user_of(request), request.query_params.get("team", "")),
            actor=actor_of(request),
            now=timezone.now(),
            **wanted.validated_data,
        )
        return Response(WebhookOut(hook).data | {"secret": secret}, status=201, headers={"Cache-Control": "no-store"})


class WebhookDetail(APIView):
    """One webhook."""

    write_scope = None

    @extend_schema(responses=WebhookOut)
    def get(self, request: Request, webhook_id: UUID) -> Response:
        return Response(WebhookOut(selectors.get_webhook(request.user, str(webhook_id))).data)

    @extend_schema(request=None, responses={204: None})
    def delete(self, request: Request, webhook_id: UUID) -> Response:
        """Stop telling it."""
        hook = selectors.get_webhook(request.user, str(webhook_id))
        services.delete_webhook(webhook=hook, actor=actor_of(request), now=timezone.now())
        return Response(status=204)


class DeliveryList(ListAPIView[Outbox]):
    """What a webhook was told or is to be told in the last month, newest first, and what became of it."""

    queryset = Outbox.objects.none()  # tells the OpenAPI document the type
    serializer_class = DeliveryOut

    def get_queryset(self) -> QuerySet[Outbox]:
        hook = selectors.get_webhook(self.request.user, str(self.kwargs["webhook_id"]))
        return selectors.in_state(selectors.deliveries_of(hook), self.request.query_params.get("state", ""))

    @extend_schema(parameters=[OpenApiParameter("state", str, enum=[state for state, _ in selectors.DELIVERY_STATES])])
    def get(self, request: Request, webhook_id: UUID) -> Response:  # noqa: ARG002 the address names it
        return self.list(request)


class DeliveryResend(APIView):
    """Try a message again that was given up."""

    write_scope = None

    @extend_schema(operation_id="webhooks_deliveries_resend", request=None, responses=DeliveryOut)
    def post(self, request: Request, webhook_id: UUID, delivery_id: UUID) -> Response:
        hook = selectors.get_webhook(request.user, str(webhook_id))
        row = selectors.get_delivery(hook, delivery_id)
        services.resend(row=row, actor=actor_of(request), now=timezone.now())
        return Response(DeliveryOut(selectors.get_delivery(hook, delivery_id)).data)
