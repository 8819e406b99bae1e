"""Samples of GPUs and engines, their rollups, and what is known of how far those go.

Wide rows: one a GPU and moment. On TimescaleDB hypertables with a columnstore and continuous aggregates that our own
tick refreshes; else partitions (days; months for hours, years for days) and rollup tables that the same tick fills.
"""

from __future__ import annotations

from typing import Any

import django.contrib.postgres.fields
from django.db import migrations, models

# As they were when this was written; a later metric is a later migration.
GAUGES = (
    "utilization_ratio",
    "memory_bandwidth_ratio",
    "memory_used_bytes",
    "temperature_c",
    "memory_temperature_c",
    "power_w",
    "sm_clock_hz",
    "memory_clock_hz",
    "fan_ratio",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_link_generation",
    "pcie_link_width",
)
COUNTERS = ("pcie_replays_total", "nvlink_errors_total", "ecc_corrected_total", "ecc_uncorrected_total")
ENGINE = ("requests_total", "errors_total", "queue_depth", "loop_age_s", "resident_bytes")


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} real" for name in names)


GPU_SAMPLE = f"""
CREATE TABLE gpu_sample (
    time timestamptz NOT NULL, gpu integer NOT NULL, simulated boolean NOT NULL,
    {_columns(GAUGES + COUNTERS)}, throttle_reasons integer, xid integer
)
"""

ENGINE_SAMPLE = f"""
CREATE TABLE engine_sample (
    time timestamptz NOT NULL, node_id uuid NOT NULL, deployment_id uuid NOT NULL, {_columns(ENGINE)}
)
"""

_GAUGE_COLUMNS = ", ".join(f"{g}_sum real, {g}_count integer NOT NULL, {g}_min real, {g}_max real" for g in GAUGES)


def rollup_table(name: str) -> str:
    """A rollup on plain PostgreSQL: gauges as sum, count, lowest and highest; a counter's last value."""
    return f"""
    CREATE TABLE {name} (
        time timestamptz NOT NULL, gpu integer NOT NULL, samples integer NOT NULL, simulated boolean NOT NULL,
        {_GAUGE_COLUMNS}, {_columns(COUNTERS)}, throttle_reasons integer, xid integer,
        PRIMARY KEY (gpu, time)
    ) PARTITION BY RANGE (time)
    """


INFERENCE_MINUTE = """
CREATE TABLE inference_minute (
    time           timestamptz NOT NULL,
    node_id        uuid        NOT NULL,
    team_id        uuid        NOT NULL,
    model          text        NOT NULL,
    version        integer     NOT NULL,
    requests       integer     NOT NULL,
    errors         integer     NOT NULL,
    slow_500ms     integer     NOT NULL,
    latency_us_sum bigint      NOT NULL,
    PRIMARY KEY (model, time, node_id, version, team_id)
) PARTITION BY RANGE (time)
"""

# Whole rows of one moment lie together, so that a block range index finds a minute of the whole fleet.
PLAIN_INDICES = (
    "CREATE INDEX gpu_sample_gpu ON gpu_sample (gpu, time)",
    "CREATE INDEX gpu_sample_time ON gpu_sample USING brin (time) WITH (pages_per_range = 32, autosummarize = on)",
    "CREATE INDEX engine_sample_deployment ON engine_sample (deployment_id, time)",
    "CREATE INDEX inference_log_time ON inference_log USING brin (time) WITH (pages_per_range = 32, autosummarize = on)",
    "CREATE INDEX gpu_minute_time ON gpu_minute USING brin (time) WITH (pages_per_range = 32, autosummarize = on)",
    "CREATE INDEX gpu_hour_time ON gpu_hour USING brin (time) WITH (pages_per_range = 32, autosummarize = on)",
    "CREATE INDEX inference_minute_time ON inference_minute (time)",
)

TIMESCALE_INDICES = (
    "CREATE INDEX gpu_sample_gpu ON gpu_sample (gpu, time DESC)",
    "CREATE INDEX gpu_sample_time ON gpu_sample (time DESC)",
    "CREATE INDEX engine_sample_deployment ON engine_sample (deployment_id, time DESC)",
    "CREATE INDEX inference_log_time ON inference_log (time DESC)",
)

ENSURE_DAY = """
CREATE OR REPLACE FUNCTION observability_ensure_day(series text, day date) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    span text := CASE
        WHEN series IN (
            'inference_log', 'comparison', 'gpu_sample', 'engine_sample', 'gpu_minute', 'inference_minute'
        ) THEN 'day'
        WHEN series = 'gpu_hour' THEN 'month'
        WHEN series = 'gpu_day' THEN 'year'
    END;
    first timestamp := date_trunc(span, day::timestamp);
    part text := format(
        '%s_p%s', series, to_char(first, CASE span WHEN 'day' THEN 'YYYYMMDD' WHEN 'month' THEN 'YYYYMM' ELSE 'YYYY' END)
    );
BEGIN
    IF span IS NULL THEN
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
        series, part, first AT TIME ZONE 'UTC', (first + ('1 ' || span)::interval) AT TIME ZONE 'UTC'
    );
END
$$
"""


def aggregate_view(name: str, source: str, width: str, chunk: str, *, of_raw: bool) -> list[str]:
    """Statements for a continuous aggregate; hours are made of minutes and days of hours."""
    if of_raw:
        gauges = [
            f"sum({g}::float8)::real AS {g}_sum, count({g})::integer AS {g}_count,"
            f" min({g}) AS {g}_min, max({g}) AS {g}_max"
            for g in GAUGES
        ]
    else:
        gauges = [
            f"sum({g}_sum::float8)::real AS {g}_sum, sum({g}_count)::integer AS {g}_count,"
            f" min({g}_min) AS {g}_min, max({g}_max) AS {g}_max"
            for g in GAUGES
        ]
    counters = [f"last({c}, time) FILTER (WHERE {c} IS NOT NULL) AS {c}" for c in COUNTERS]
    samples = "count(*)" if of_raw else "sum(samples)"
    columns = ", ".join(gauges + counters)
    bucket = f"time_bucket(INTERVAL '{width}', time)"
    return [
        f"CREATE MATERIALIZED VIEW {name} WITH (timescaledb.continuous, timescaledb.materialized_only = true) AS"  # noqa: S608 names of this file
        f" SELECT {bucket} AS time, gpu, {samples}::integer AS samples, bool_or(simulated) AS simulated, {columns},"
        " bit_or(throttle_reasons) AS throttle_reasons, max(xid) AS xid"
        f" FROM {source} GROUP BY {bucket}, gpu WITH NO DATA",
        f"SELECT set_chunk_time_interval('{name}', INTERVAL '{chunk}')",
    ]


INFERENCE_MINUTE_VIEW = """
CREATE MATERIALIZED VIEW inference_minute WITH (timescaledb.continuous, timescaledb.materialized_only = true) AS
SELECT time_bucket(INTERVAL '1 minute', time) AS time, node_id, team_id, model, version,
       count(*)::integer AS requests,
       (count(*) FILTER (WHERE status >= 500))::integer AS errors,
       (count(*) FILTER (WHERE total_us > 500000))::integer AS slow_500ms,
       sum(total_us) AS latency_us_sum
FROM inference_log
GROUP BY time_bucket(INTERVAL '1 minute', time), node_id, team_id, model, version
WITH NO DATA
"""

# requests that an earlier release has stored are rolled up by the first ticks
MARK_WHAT_IS_THERE = """
INSERT INTO observability_dirtyminute (series, minute, gpus)
SELECT DISTINCT 'inference_log', date_trunc('minute', time), '{}'::integer[] FROM inference_log
"""

HYPERTABLES = (
    # name, chunk, what a segment of the columnstore has in common, when a chunk goes there
    ("gpu_sample", "1 hour", "gpu", "6 hours"),
    ("engine_sample", "6 hours", "deployment_id", "12 hours"),
)
AGGREGATES = ("gpu_minute", "gpu_hour", "gpu_day")


def _plain(cursor: Any) -> None:
    cursor.execute(GPU_SAMPLE + " PARTITION BY RANGE (time)")
    cursor.execute(ENGINE_SAMPLE + " PARTITION BY RANGE (time)")
    for name in ("gpu_minute", "gpu_hour", "gpu_day"):
        cursor.execute(rollup_table(name))
    cursor.execute(INFERENCE_MINUTE)
    for index in PLAIN_INDICES:
        cursor.execute(index)
    cursor.execute(ENSURE_DAY)


def _timescale(cursor: Any) -> None:
    cursor.execute(GPU_SAMPLE)
    cursor.execute(ENGINE_SAMPLE)
    for name, chunk, segment, after in HYPERTABLES:
        cursor.execute(
            f"SELECT create_hypertable('{name}', by_range('time', INTERVAL '{chunk}'), create_default_indexes => false)"
        )
        cursor.execute(
            f"ALTER TABLE {name} SET (timescaledb.enable_columnstore = true, timescaledb.segmentby = '{segment}',"
            " timescaledb.orderby = 'time DESC')"
        )
        cursor.execute(f"CALL add_columnstore_policy('{name}', after => INTERVAL '{after}')")
    for index in TIMESCALE_INDICES:
        cursor.execute(index)
    views = [
        *aggregate_view("gpu_minute", "gpu_sample", "1 minute", "1 day", of_raw=True),
        *aggregate_view("gpu_hour", "gpu_minute", "1 hour", "30 days", of_raw=False),
        *aggregate_view("gpu_day", "gpu_hour", "1 day", "365 days", of_raw=False),
        INFERENCE_MINUTE_VIEW,
        "SELECT set_chunk_time_interval('inference_minute', INTERVAL '1 day')",
    ]
    for statement in views:
        cursor.execute(statement)
    for name in AGGREGATES:
        # converted by our own upkeep: a policy of TimescaleDB's would want one of its own refresh too
        cursor.execute(
            f"ALTER MATERIALIZED VIEW {name} SET (timescaledb.enable_columnstore = true,"
            " timescaledb.segmentby = 'gpu', timescaledb.orderby = 'time DESC')"
        )


def create(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    kind = apps.get_model("observability", "StoreKind").objects.using(alias).get().kind
    with schema_editor.connection.cursor() as cursor:
        (_timescale if kind == "timescale" else _plain)(cursor)
        cursor.execute(MARK_WHAT_IS_THERE)


def drop(apps: Any, schema_editor: Any) -> None:
    alias = schema_editor.connection.alias
    kind = apps.get_model("observability", "StoreKind").objects.using(alias).get().kind
    view = "MATERIALIZED VIEW" if kind == "timescale" else "TABLE"
    with schema_editor.connection.cursor() as cursor:
        for name in ("gpu_day", "gpu_hour", "gpu_minute", "inference_minute"):
            cursor.execute(f"DROP {view} {name}")
        cursor.execute("DROP INDEX inference_log_time")
        cursor.execute("DROP TABLE gpu_sample, engine_sample")


class Migration(migrations.Migration):
    dependencies = [("observability", "0002_series"), ("fleet", "0003_gpu_health")]

    operations = [
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("series", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("rolled_until", models.DateTimeField()),
            ],
            options={"db_table": "observability_rollup"},
        ),
        migrations.CreateModel(
            name="DirtyMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("series", models.CharField(max_length=32)),
                ("minute", models.DateTimeField()),
                (
                    "gpus",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), default=list, size=None
                    ),
                ),
            ],
            options={
                "db_table": "observability_dirtyminute",
                "indexes": [models.Index(fields=["series", "minute"], name="observability_dirty_minute")],
            },
        ),
        migrations.RunPython(create, drop),
    ]
