"""REST of observability: feedback in, single requests out."""

from __future__ import annotations

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access.actors import actor_of
from apps.access.models import Scope
from apps.access.selectors import teams_for, working_team
from apps.lib.errors import DomainError, NotFound
from apps.observability import services, timeseries
from apps.observability.serializers import FeedbackIn, FeedbackOut, LoggedRequestOut

LABELS_MAX = 1_000
TEAM = OpenApiParameter("team", str, description="Slug of the team whose requests these are; only if you have several.")


class FeedbackView(APIView):
    """True labels of past requests. Repeating a label changes nothing, a new one replaces it."""

    write_scope = Scope.FEEDBACK_WRITE

    @extend_schema(parameters=[TEAM], request=FeedbackIn(many=True), responses=FeedbackOut)
    def post(self, request: Request) -> Response:
        wanted = FeedbackIn(data=request.data, many=True)
        wanted.is_valid(raise_exception=True)
        labels = wanted.validated_data
        if len(labels) > LABELS_MAX:
            raise DomainError("too_many_labels", f"Send at most {LABELS_MAX} labels at a time, not {len(labels)}.")
        stored = services.record_feedback(
            team=working_team(request.user, request.query_params.get("team", "")),
            labels=labels,
            actor=actor_of(request),
            now=timezone.now(),
        )
        return Response(FeedbackOut({"stored": stored}).data)


class RequestDetail(APIView):
    """What the inference log has on one request id."""

    @extend_schema(responses=LoggedRequestOut(many=True))
    def get(self, request: Request, request_id: str) -> Response:
        rows = timeseries.request(request_id, teams_for(request.user).values_list("pk", flat=True))
        if not rows:
            raise NotFound("request_not_found", f"The log holds no request «{request_id[:64]}» of your teams.")
        return Response(LoggedRequestOut(rows, many=True).data)
