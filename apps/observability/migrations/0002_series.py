"""The time-series tables: hypertables where TimescaleDB is loaded, else daily partitions. Django does not manage them."""

from __future__ import annotations

from typing import Any

from django.db import migrations

INFERENCE_LOG = """
CREATE TABLE inference_log (
    time            timestamptz NOT NULL,
    received_at     timestamptz NOT NULL,
    node_id         uuid        NOT NULL,
    team_id         uuid        NOT NULL,
    request_id      text        NOT NULL,
    model           text        NOT NULL,
    version         integer     NOT NULL,
    digest          bytea       NOT NULL,
    deployment_id   uuid        NOT NULL,
    status          integer     NOT NULL,
    error_code      text        NOT NULL,
    user_key        bytea       NOT NULL,
    session_id      text        NOT NULL,
    input_sha256    bytea       NOT NULL,
    input_items     integer     NOT NULL,
    input_tokens    integer     NOT NULL,
    batch_size      integer     NOT NULL,
    queue_us        integer     NOT NULL,
    preprocess_us   integer     NOT NULL,
    compute_us      integer     NOT NULL,
    postprocess_us  integer     NOT NULL,
    total_us        integer     NOT NULL,
    entropy         real,
    score           real,
    predicted_label text        NOT NULL
)
"""

COMPARISON = """
CREATE TABLE comparison (
    time              timestamptz NOT NULL,
    received_at       timestamptz NOT NULL,
    node_id           uuid        NOT NULL,
    team_id           uuid        NOT NULL,
    request_id        text        NOT NULL,
    model             text        NOT NULL,
    rollout_id        uuid        NOT NULL,
    stage             integer     NOT NULL,
    attempt           integer     NOT NULL,
    deployment_id     uuid        NOT NULL,
    baseline_version  integer     NOT NULL,
    candidate_version integer     NOT NULL,
    similarity        real,
    baseline_us       integer     NOT NULL,
    candidate_us      integer     NOT NULL,
    baseline_status   integer     NOT NULL,
    candidate_status  integer     NOT NULL,
    batch_size        integer     NOT NULL,
    sample            text        NOT NULL,
    dropped_before    integer     NOT NULL
)
"""

INDICES = (
    "CREATE INDEX inference_log_version ON inference_log (model, version, time)",
    "CREATE INDEX inference_log_request ON inference_log (request_id)",
    "CREATE INDEX comparison_attempt ON comparison (rollout_id, stage, attempt, time)",
    "CREATE INDEX comparison_request ON comparison (request_id)",
)

# The web's role doesn't own the tables; these two run as their owner, and do nothing else than their names say.
# ATTACH takes a lock that inserts don't wait for; the advisory lock keeps two creators of one day apart.
ENSURE_DAY = """
CREATE FUNCTION observability_ensure_day(series text, day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    part text := format('%s_p%s', series, to_char(day, 'YYYYMMDD'));
BEGIN
    IF series NOT IN ('inference_log', 'comparison') THEN
        RAISE EXCEPTION 'no series is called %', series;
    END IF;
    IF day > (now() AT TIME ZONE 'UTC')::date + 8 THEN
        RAISE EXCEPTION 'a partition for % lies too far ahead', day;
    END IF;
    IF to_regclass(part) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('observability_ensure_day'));
    IF to_regclass(part) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, series);
    EXECUTE format(
        'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
        series, part, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC'
    );
END
$$
"""


def _timescale(cursor: Any) -> bool:
    cursor.execute(
        "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'timescaledb')"
        " AND current_setting('shared_preload_libraries') LIKE '%timescaledb%'"
    )
    return bool(cursor.fetchone()[0])


def create(apps: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        timescale = _timescale(cursor)
        tail = "" if timescale else " PARTITION BY RANGE (time)"
        for table in (INFERENCE_LOG, COMPARISON):
            cursor.execute(table + tail)
        if timescale:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS timescaledb")
            for name in ("inference_log", "comparison"):
                cursor.execute(
                    f"SELECT create_hypertable('{name}', by_range('time', INTERVAL '1 day'),"
                    " create_default_indexes => false)"
                )
        else:
            cursor.execute(ENSURE_DAY)
        for index in INDICES:
            cursor.execute(index)
    kinds = apps.get_model("observability", "StoreKind").objects.using(schema_editor.connection.alias)
    kinds.create(kind="timescale" if timescale else "plain")


def drop(apps: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("DROP TABLE inference_log, comparison")
        cursor.execute("DROP FUNCTION IF EXISTS observability_ensure_day(text, date)")
    apps.get_model("observability", "StoreKind").objects.using(schema_editor.connection.alias).all().delete()


class Migration(migrations.Migration):
    dependencies = [("observability", "0001_initial")]

    operations = [migrations.RunPython(create, drop)]
