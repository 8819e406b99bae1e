"""The Celery application: a doorbell, not a queue (docs/adr). Tasks are thin and live in workers/<app>.py."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from celery import Celery
from django.conf import settings

from workers.schedule import SCHEDULE, TASK_MODULES

app = Celery("farrier", broker=settings.FARRIER.redis_url)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=120,
    task_soft_time_limit=110,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_max_tasks_per_child=5_000,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # kombu's own sweep would give a dead worker's tasks back after 100 s; these bring it to seconds
    broker_transport_options={
        "visibility_timeout": 180,
        "unacked_restore_interval": 2,
        "unacked_restore_throttle": 1,
        # a ring whose broker is away gives up at once: whoever rings is in the middle of a request (it took 6 s)
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.1,
    },
    task_default_queue="default",
    imports=TASK_MODULES,
    beat_schedule=SCHEDULE,
    timezone="UTC",
)
