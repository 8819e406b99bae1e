"""REST of the fleet: nodes and what people do to them, pools, join tokens."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access.actors import actor_of
from apps.access.idempotency import idempotent
from apps.access.models import Scope
from apps.fleet import hardware, selectors, services
from apps.fleet.models import JoinToken, Node, Pool
from apps.fleet.serializers import (
    JoinTokenCreated,
    JoinTokenIn,
    JoinTokenOut,
    NodeDetailOut,
    NodeOut,
    PoolApprovalIn,
    PoolOut,
    ReasonIn,
    VerbIn,
)

VERBS = {
    "accept": services.accept_node,
    "reject": services.reject_node,
    "cordon": services.cordon_node,
    "uncordon": services.uncordon_node,
    "drain": services.drain_node,
    "quarantine": services.quarantine_node,
    "ban": services.ban_node,
}


class PoolList(ListAPIView[Pool]):
    """The pools of your teams."""

    serializer_class = PoolOut

    def get_queryset(self) -> QuerySet[Pool]:
        return selectors.pools(self.request.user)


class PoolApproval(APIView):
    """Whether the pool's versions are replaced only with a person's approval. An admin decides, with a reason."""

    write_scope = Scope.FLEET_WRITE

    @extend_schema(request=PoolApprovalIn, responses=PoolOut)
    @idempotent
    def post(self, request: Request, slug: str) -> Response:
        wanted = PoolApprovalIn(data=request.data)
        wanted.is_valid(raise_exception=True)
        pool = selectors.get_pool(request.user, slug)
        services.set_pool_approval(pool, actor=actor_of(request), now=timezone.now(), **wanted.validated_data)
        return Response(PoolOut(selectors.pools(request.user).get(pk=pool.pk)).data)


class NodeList(ListAPIView[Node]):
    """The nodes of your teams, by name, with what each should run and what it says it runs."""

    serializer_class = NodeOut
    filterset_fields = ["phase", "zone", "pool__slug"]

    def get_queryset(self) -> QuerySet[Node]:
        return selectors.nodes(self.request.user)


class NodeDetail(APIView):
    """One node."""

    @extend_schema(responses=NodeDetailOut)
    def get(self, request: Request, name: str) -> Response:
        return Response(NodeDetailOut(selectors.get_node(request.user, name)).data)


class NodeVerb(APIView):
    """What a person does to a node, with a reason that stays in the audit log."""

    write_scope = Scope.FLEET_WRITE
    verb = ""  # a key of VERBS; set by the address

    @extend_schema(request=VerbIn, responses=NodeDetailOut)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        wanted = VerbIn(data=request.data)
        wanted.is_valid(raise_exception=True)
        fields: dict[str, Any] = wanted.validated_data
        VERBS[self.verb](
            selectors.get_node(request.user, name),
            actor=actor_of(request),
            reason=fields["reason"],
            now=timezone.now(),
            expected_revision=fields["expected_revision"],
        )
        return Response(NodeDetailOut(selectors.get_node(request.user, name)).data)


class GpuRemoval(APIView):
    """Forget a GPU that was taken out of its host; as long as its host lists it, that is a conflict."""

    write_scope = Scope.FLEET_WRITE

    @extend_schema(request=ReasonIn, responses=NodeDetailOut)
    @idempotent
    def post(self, request: Request, name: str, uuid: str) -> Response:
        wanted = ReasonIn(data=request.data)
        wanted.is_valid(raise_exception=True)
        gpu = selectors.get_gpu(request.user, name, uuid)
        hardware.remove_gpu(gpu, actor=actor_of(request), reason=wanted.validated_data["reason"], now=timezone.now())
        return Response(NodeDetailOut(selectors.get_node(request.user, name)).data)


class JoinTokenList(ListAPIView[JoinToken]):
    """Join tokens that may still be used."""

    serializer_class = JoinTokenOut
    write_scope = Scope.FLEET_WRITE

    def get_queryset(self) -> QuerySet[JoinToken]:
        return selectors.join_tokens(self.request.user, timezone.now())

    @extend_schema(request=JoinTokenIn, responses={201: JoinTokenCreated})
    def post(self, request: Request) -> Response:
        """Make a single-use token; the answer is the only place where it ever appears."""
        wanted = JoinTokenIn(data=request.data)
        wanted.is_valid(raise_exception=True)
        fields: dict[str, Any] = wanted.validated_data
        now = timezone.now()
        token = services.create_join_token(
            pool=selectors.get_pool(request.user, fields["pool"]),
            actor=actor_of(request),
            now=now,
            node_name=fields["node_name"],
        )
        created = {"token": token, "expires_at": now + services.JOIN_TOKEN_LIFE}
        return Response(JoinTokenCreated(created).data, status=201, headers={"Cache-Control": "no-store"})
