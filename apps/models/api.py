"""REST of the registry: models, versions, artifacts, aliases."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import UnreadablePostError
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access.actors import actor_of, user_of
from apps.access.idempotency import idempotent
from apps.access.models import Scope
from apps.access.selectors import working_team
from apps.lib.errors import DomainError
from apps.lib.params import int_param, time_param
from apps.models import selectors, services
from apps.models.models import Alias, AliasMove, ModelVersion, RegisteredModel
from apps.models.serializers import (
    AliasIn,
    AliasMoveOut,
    AliasOut,
    BlobOut,
    LineageDiffOut,
    ModelOut,
    ModelPatch,
    PublishIn,
    ReserveIn,
    ReserveOut,
    VersionDetail,
    VersionOut,
)

DIGEST = re.compile(r"[0-9a-f]{128}")
TEAM = OpenApiParameter(
    "team", str, description="Slug of the team that a new object belongs to; only if you have several."
)


def checked(serializer: Any) -> dict[str, Any]:
    """Return a serializer's validated data. Raises DRF's ValidationError, which becomes problem JSON."""
    serializer.is_valid(raise_exception=True)
    data: dict[str, Any] = serializer.validated_data
    return data


class ModelList(ListAPIView[RegisteredModel]):
    """The registered models of your teams."""

    serializer_class = ModelOut

    def get_queryset(self) -> QuerySet[RegisteredModel]:
        return selectors.models_for(self.request.user)


class ModelDetail(APIView):
    """One registered model."""

    write_scope = Scope.REGISTRY_WRITE

    @extend_schema(responses=ModelOut)
    def get(self, request: Request, slug: str) -> Response:
        return Response(ModelOut(selectors.get_model(request.user, slug)).data)

    @extend_schema(request=ModelPatch, responses=ModelOut)
    @idempotent
    def patch(self, request: Request, slug: str) -> Response:
        """Change its description, task or latency promise."""
        model = selectors.get_model(request.user, slug)
        fields = checked(ModelPatch(data=request.data))
        services.update_model(model=model, actor=actor_of(request), now=timezone.now(), **fields)
        return Response(ModelOut(model).data)


class VersionReserve(APIView):
    """The next number of a model, for its publisher to sign."""

    write_scope = Scope.REGISTRY_WRITE

    @extend_schema(operation_id="versions_reserve", parameters=[TEAM], request=ReserveIn, responses={201: ReserveOut})
    @idempotent
    def post(self, request: Request, slug: str) -> Response:
        """Reserve it; the first one creates the model. Given up after a day without a publication."""
        version = services.reserve_version(
            slug=slug,
            team=working_team(user_of(request), request.query_params.get("team", "")),
            actor=actor_of(request),
            now=timezone.now(),
            **checked(ReserveIn(data=request.data)),
        )
        return Response(ReserveOut(version).data, status=201)


class VersionList(ListAPIView[ModelVersion]):
    """A model's versions, newest first."""

    queryset = ModelVersion.objects.none()  # tells the OpenAPI document the type
    serializer_class = VersionOut

    def get_queryset(self) -> QuerySet[ModelVersion]:
        return selectors.versions_of(selectors.get_model(self.request.user, self.kwargs["slug"]))


class VersionDetailView(APIView):
    """One version with its lineage and what went into each hash."""

    @extend_schema(responses=VersionDetail)
    def get(self, request: Request, slug: str, number: int) -> Response:
        return Response(VersionDetail(selectors.get_version(request.user, slug, number)).data)


class VersionPublish(APIView):
    """The signed word of its publisher on what a version is."""

    write_scope = Scope.REGISTRY_WRITE

    @extend_schema(operation_id="versions_publish", request=PublishIn, responses={201: VersionDetail})
    @idempotent
    def post(self, request: Request, slug: str, number: int) -> Response:
        """Verify manifest, stored file and lineage against each other, then publish; immutable from here on."""
        fields = checked(PublishIn(data=request.data))
        envelope: bytes = fields.pop("manifest")
        fields.pop("digest", None)  # the manifest's, which is signed, is the one that counts
        services.publish_version(
            version=selectors.get_version(request.user, slug, number),
            envelope=envelope,
            publication=services.Publication(**fields),
            actor=actor_of(request),
            now=timezone.now(),
        )
        return Response(VersionDetail(selectors.get_version(request.user, slug, number)).data, status=201)


class Raw(BaseParser):
    """For the OpenAPI document alone: the view reads the body itself, piece by piece."""

    media_type = "application/octet-stream"


class ArtifactView(APIView):
    """A stored .aifb file."""

    parser_classes = [Raw]
    write_scope = Scope.REGISTRY_WRITE

    @extend_schema(responses=BlobOut)
    def get(self, request: Request, digest: str) -> Response:
        """Tell whether, and since when, the store holds an artifact of your teams."""
        return Response(BlobOut(selectors.get_blob(request.user, digest)).data)

    @extend_schema(parameters=[TEAM], request=OpenApiTypes.BINARY, responses={200: BlobOut, 201: BlobOut})
    def put(self, request: Request, digest: str) -> Response:
        """Upload it: 201 once every chunk is verified, 200 when the store has it already."""
        if not DIGEST.fullmatch(digest):
            raise DomainError("bad_digest", "The address must end in the artifact's digest, 128 hex characters.")
        blob, created = services.store_blob(
            read=_reader(request),
            digest=digest,
            length=_content_length(request),
            team=working_team(user_of(request), request.query_params.get("team", "")),
            actor=actor_of(request),
            now=timezone.now(),
        )
        return Response(BlobOut(blob).data, status=201 if created else 200)


def _content_length(request: Request) -> int:
    text = request.META.get("CONTENT_LENGTH") or ""
    if not text.isdecimal() or int(text) == 0:
        raise DomainError("length_required", "An upload must state its Content-Length in bytes.", status=411)
    return int(text)


def _reader(request: Request) -> Any:
    def read(count: int) -> bytes:
        try:
            return request._request.read(count)
        except UnreadablePostError as lost:
            raise DomainError("truncated", "The connection broke during the upload; send it again.") from lost

    return read


class AliasList(ListAPIView[Alias]):
    """A model's aliases."""

    queryset = Alias.objects.none()  # tells the OpenAPI document the type
    serializer_class = AliasOut

    def get_queryset(self) -> QuerySet[Alias]:
        return selectors.aliases_of(selectors.get_model(self.request.user, self.kwargs["slug"]))


class AliasDetail(APIView):
    """One alias of a model."""

    write_scope = Scope.REGISTRY_WRITE

    @extend_schema(responses=AliasOut)
    def get(self, request: Request, slug: str, name: str) -> Response:
        return Response(AliasOut(selectors.get_alias(selectors.get_model(request.user, slug), name)).data)

    @extend_schema(request=AliasIn, responses=AliasOut)
    @idempotent
    def put(self, request: Request, slug: str, name: str) -> Response:
        """Point it at a published version; the history keeps who, when and why."""
        fields = checked(AliasIn(data=request.data))
        version = selectors.get_version(request.user, slug, fields.pop("version"))
        alias = services.move_alias(
            model=version.model, name=name, version=version, actor=actor_of(request), now=timezone.now(), **fields
        )
        return Response(AliasOut(alias).data)


class AliasHistory(ListAPIView[AliasMove]):
    """Every move of an alias, newest first."""

    queryset = AliasMove.objects.none()  # tells the OpenAPI document the type
    serializer_class = AliasMoveOut

    def get_queryset(self) -> QuerySet[AliasMove]:
        model = selectors.get_model(self.request.user, self.kwargs["slug"])
        return selectors.alias_history(selectors.get_alias(model, self.kwargs["name"]))


class AliasAt(APIView):
    """What an alias meant at a time."""

    @extend_schema(
        operation_id="alias_at",
        parameters=[OpenApiParameter("at", datetime, description="ISO 8601; now if left out.")],
        responses=AliasMoveOut,
    )
    def get(self, request: Request, slug: str, name: str) -> Response:
        at = time_param(request, "at") or timezone.now()
        return Response(AliasMoveOut(selectors.alias_at(selectors.get_model(request.user, slug), name, at)).data)


class LineageDiffView(APIView):
    """Two versions of a model compared: which of the four parts moved, hence where to look."""

    @extend_schema(
        operation_id="lineage_diff",
        parameters=[OpenApiParameter("before", int, required=True), OpenApiParameter("after", int, required=True)],
        responses=LineageDiffOut,
    )
    def get(self, request: Request, slug: str) -> Response:
        before, after = (
            selectors.get_version(request.user, slug, int_param(request, name)) for name in ("before", "after")
        )
        return Response(LineageDiffOut(selectors.lineage_diff(before, after)).data)
