"""REST: who am I, and my API tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.access import selectors, services
from apps.access.actors import actor_of, user_of
from apps.access.models import ApiToken, Scope
from apps.access.serializers import MeOut, TokenCreated, TokenIn, TokenOut
from apps.access.throttles import TokenThrottle


class MeView(APIView):
    """Who the request comes from."""

    @extend_schema(operation_id="me", responses=MeOut)
    def get(self, request: Request) -> Response:
        user = user_of(request)
        token = request.auth if isinstance(request.auth, ApiToken) else None
        me = {
            "username": user.get_username(),
            "is_superuser": user.is_superuser,
            "memberships": selectors.memberships_of(user),
            "token": token.name if token else None,
            "scopes": token.scopes if token else list(Scope),
        }
        return Response(MeOut(me).data)


class TokenList(ListAPIView[ApiToken]):
    """Your own API tokens. Making one takes a session: a token can't beget another."""

    queryset = ApiToken.objects.none()  # tells the OpenAPI document the type
    serializer_class = TokenOut
    throttle_classes = [TokenThrottle]
    write_scope = None

    def get_queryset(self) -> QuerySet[ApiToken]:
        return selectors.tokens_of(user_of(self.request))

    @extend_schema(request=TokenIn, responses={201: TokenCreated})
    def post(self, request: Request) -> Response:
        """Create a token; the answer is the only place where its secret ever appears."""
        wanted = TokenIn(data=request.data)
        wanted.is_valid(raise_exception=True)
        fields: dict[str, Any] = wanted.validated_data
        user = user_of(request)
        token, secret = services.create_api_token(
            user=user,
            team=selectors.get_team(user, fields["team"]),
            name=fields["name"],
            scopes=[Scope(scope) for scope in fields["scopes"]],
            life=timedelta(days=fields["expires_in_days"]),
            actor=actor_of(request),
            now=timezone.now(),
        )
        body = TokenOut(token).data | {"secret": secret}
        return Response(body, status=201, headers={"Cache-Control": "no-store"})


class TokenDetail(APIView):
    """One of your own API tokens."""

    throttle_classes = [TokenThrottle]
    write_scope = None

    @extend_schema(responses=TokenOut)
    def get(self, request: Request, token_id: str) -> Response:
        return Response(TokenOut(selectors.get_token(user_of(request), token_id)).data)

    @extend_schema(request=None, responses={204: None})
    def delete(self, request: Request, token_id: str) -> Response:
        """Revoke it: the next request that presents it is refused."""
        token = selectors.get_token(user_of(request), token_id)
        services.revoke_api_token(token=token, actor=actor_of(request), now=timezone.now())
        return Response(status=204)
