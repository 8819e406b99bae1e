"""Paging, for pages and for the API alike; its state lives in the URL."""

from __future__ import annotations

from typing import TypeVar

from django.core.paginator import Page, Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from rest_framework.pagination import LimitOffsetPagination

PAGE_ROWS = 50
M = TypeVar("M", bound=Model)


class ApiPagination(LimitOffsetPagination):
    """`?limit=&offset=`; never more than 500 rows an answer."""

    default_limit = PAGE_ROWS
    max_limit = 500


def page_of(rows: QuerySet[M], request: HttpRequest, per_page: int = PAGE_ROWS) -> Page[M]:
    """Return the page that `?page=` asks for; a number out of range gives the nearest page."""
    return Paginator(rows, per_page).get_page(request.GET.get("page"))
