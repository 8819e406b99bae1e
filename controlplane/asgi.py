"""The `live` process: `uvicorn controlplane.asgi:live`."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from controlplane.live import Live  # noqa: E402 the settings must stand first

live = Live()
