"""REST of rollouts: start, watch, decide, hold; strategies."""

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
from apps.lib.params import int_param
from apps.models.api import checked
from apps.models.selectors import get_version
from apps.rollouts import selectors, services
from apps.rollouts.models import Hold, Rollout, Strategy
from apps.rollouts.serializers import (
    CommandIn,
    EvidencePage,
    HoldIn,
    HoldOut,
    LiftIn,
    RolloutDetail,
    RolloutIn,
    RolloutOut,
    StrategyIn,
    StrategyOut,
)

_FILTERS = [
    OpenApiParameter("model", str, description="Slug of the model."),
    OpenApiParameter("number", int, description="The rollout's number, «42» of #42."),
    OpenApiParameter("phase", str, description="pending, progressing, paused, …"),
    OpenApiParameter("pool", str, description="Slug of the pool."),
    OpenApiParameter("waiting", bool, description="`true`: only those that wait for your decision."),
]


class RolloutList(ListAPIView[Rollout]):
    """The rollouts of your teams, newest first."""

    queryset = Rollout.objects.none()  # tells the OpenAPI document the type
    serializer_class = RolloutOut
    write_scope = Scope.ROLLOUTS_WRITE

    def get_queryset(self) -> QuerySet[Rollout]:
        query = self.request.query_params
        waits = query.get("waiting") == "true"
        rows = selectors.waiting_for(self.request.user) if waits else selectors.rollouts_for(self.request.user)
        for name, column in (("model", "model__slug"), ("phase", "phase"), ("pool", "pool__slug")):
            if query.get(name):
                rows = rows.filter(**{column: query[name]})
        return rows.filter(number=int_param(self.request, "number")) if "number" in query else rows

    @extend_schema(parameters=_FILTERS)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List them; filters may be combined."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=RolloutIn, responses={201: RolloutOut})
    @idempotent
    def post(self, request: Request) -> Response:
        """Start one. 409 `held` while its digest is on hold, `rollout_open` while another one runs on the pool."""
        fields = checked(RolloutIn(data=request.data))
        user = user_of(request)
        version = get_version(user, fields["model"], fields["version"])
        strategy = fields.get("strategy")
        rollout = services.start_rollout(
            model=version.model,
            version=version,
            pool=selectors.get_pool(user, version.team_id, fields["pool"]),
            strategy=selectors.get_strategy(user, version.team_id, strategy) if strategy else None,
            stages=fields.get("stages"),
            actor=actor_of(request),
            reason=fields["reason"],
            now=timezone.now(),
        )
        return Response(RolloutOut(selectors.get_rollout(user, rollout.pk)).data, status=201)


class RolloutView(APIView):
    """One rollout with its stages, nodes, decisions and the sentence that says what decided its end."""

    @extend_schema(responses=RolloutDetail)
    def get(self, request: Request, pk: UUID) -> Response:
        return Response(RolloutDetail(selectors.get_rollout(request.user, pk)).data)


class EvidenceView(APIView):
    """What each metric says in each stage, and the snapshots that people decided on."""

    @extend_schema(responses=EvidencePage)
    def get(self, request: Request, pk: UUID) -> Response:
        rollout = selectors.get_rollout(request.user, pk)
        page = {"results": selectors.evidence_of(rollout), "snapshots": selectors.snapshots_of(rollout)}
        return Response(EvidencePage(page).data)


class _Command(APIView):
    """A command to one rollout; subclasses name the service."""

    perform: ClassVar[Callable[..., object]]
    write_scope = Scope.ROLLOUTS_WRITE

    @extend_schema(request=CommandIn, responses=RolloutDetail)
    @idempotent
    def post(self, request: Request, pk: UUID) -> Response:
        """Needs a reason; with `expected_revision` it is refused (409) when the rollout has moved on."""
        user = user_of(request)
        fields = checked(CommandIn(data=request.data))
        rollout = selectors.get_rollout(user, pk)
        type(self).perform(rollout, actor=actor_of(request), now=timezone.now(), **fields)
        return Response(RolloutDetail(selectors.get_rollout(user, pk)).data)


class Approve(_Command):
    """Approve the frozen evidence, as another person than the requester."""

    perform = staticmethod(services.approve_rollout)
    write_scope = Scope.ROLLOUTS_APPROVE


class Reject(_Command):
    """Reject the frozen evidence: it rolls back."""

    perform = staticmethod(services.reject_rollout)
    write_scope = Scope.ROLLOUTS_APPROVE


class Abort(_Command):
    """Bring every node back to what it served before; beats everything else."""

    perform = staticmethod(services.abort_rollout)


class Pause(_Command):
    """Stop before the next promotion; automatic rollback stays armed."""

    perform = staticmethod(services.pause_rollout)


class Resume(_Command):
    """Go on where it was paused."""

    perform = staticmethod(services.resume_rollout)


class HoldList(ListAPIView[Hold]):
    """Digests that must not be rolled out until a named person lifts the hold."""

    queryset = Hold.objects.none()  # tells the OpenAPI document the type
    serializer_class = HoldOut
    write_scope = Scope.ROLLOUTS_WRITE

    def get_queryset(self) -> QuerySet[Hold]:
        rows = selectors.holds_for(self.request.user)
        active = self.request.query_params.get("active")
        return rows.filter(lifted_at__isnull=active == "true") if active in ("true", "false") else rows

    @extend_schema(parameters=[OpenApiParameter("active", bool, description="`true`: not lifted; `false`: lifted.")])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List them, newest first."""
        return super().get(request, *args, **kwargs)

    @extend_schema(request=HoldIn, responses={201: HoldOut})
    @idempotent
    def post(self, request: Request) -> Response:
        """Place one by hand on a version that has been rolled out before."""
        fields = checked(HoldIn(data=request.data))
        version = get_version(request.user, fields["model"], fields["version"])
        hold = services.place_hold(
            version=version, actor=actor_of(request), reason=fields["reason"], now=timezone.now()
        )
        return Response(HoldOut(selectors.get_hold(request.user, hold.pk)).data, status=201)


class HoldLift(APIView):
    """Lift a hold, as an approver, for a reason."""

    write_scope = Scope.ROLLOUTS_APPROVE

    @extend_schema(operation_id="holds_lift", request=LiftIn, responses=HoldOut)
    @idempotent
    def post(self, request: Request, pk: UUID) -> Response:
        hold = selectors.get_hold(request.user, pk)
        fields = checked(LiftIn(data=request.data))
        services.lift_hold(hold, actor=actor_of(request), now=timezone.now(), **fields)
        return Response(HoldOut(selectors.get_hold(request.user, pk)).data)


class StrategyList(ListAPIView[Strategy]):
    """The named plans that rollouts follow."""

    queryset = Strategy.objects.none()  # tells the OpenAPI document the type
    serializer_class = StrategyOut
    write_scope = Scope.ROLLOUTS_WRITE

    def get_queryset(self) -> QuerySet[Strategy]:
        return selectors.strategies_for(self.request.user)

    @extend_schema(request=StrategyIn, responses={201: StrategyOut})
    @idempotent
    def post(self, request: Request) -> Response:
        """Write one down; refused when its minimum samples could never prove its margins."""
        fields = checked(StrategyIn(data=request.data))
        strategy = services.create_strategy(
            team=working_team(user_of(request), request.query_params.get("team", "")),
            slug=fields["name"],
            stages=fields["stages"],
            description=fields["description"],
            actor=actor_of(request),
            now=timezone.now(),
        )
        return Response(StrategyOut(strategy).data, status=201)
