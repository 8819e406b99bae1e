"""Links from events to what they speak of."""

from __future__ import annotations

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.audit.models import Event
from apps.audit.page_selectors import address
from apps.lib.templatetags.farrier import short_label, verb

register = template.Library()


@register.simple_tag
def event_link(event: Event) -> SafeString:
    """Return «Rollout completed #42», the object linked to its page where it has one."""
    where = address(event)
    if where is None:
        return format_html("<strong>{}</strong> {}", verb(event.verb, event.data), short_label(event.object_label))
    return format_html(
        '<strong>{}</strong> <a href="{}">{}</a>', verb(event.verb, event.data), where, short_label(event.object_label)
    )
