"""Where the time series live: tables, their parts, what is copied into them and dropped from them.

The same calls do the same on TimescaleDB (hypertables, continuous aggregates) and on plain partitions and tables. All
SQL on the series is in this module and its neighbours timeseries.py (requests), samples.py (GPUs) and rollups.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction

# Series by the length of their partitions; TimescaleDB's chunks have lengths of their own.
DAILY = ("inference_log", "comparison", "gpu_sample", "engine_sample", "gpu_minute", "inference_minute")
MONTHLY = ("gpu_hour",)
YEARLY = ("gpu_day",)
SERIES = DAILY + MONTHLY + YEARLY
ROLLUPS = ("gpu_minute", "gpu_hour", "gpu_day", "inference_minute")  # views on TimescaleDB
DAYS_AHEAD = 3
_SQL = Path(__file__).parent / "sql"
R = TypeVar("R", bound=tuple[Any, ...])


def owner() -> str:
    """The alias of the connection under which the tables are altered and rolled up."""
    return "owner" if "owner" in connections else DEFAULT_DB_ALIAS


def ensure_days(series: str, days: Iterable[date], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Make sure that rows of these (UTC) days have a place. Nothing to do on TimescaleDB."""
    if is_timescale():
        return
    with connections[using].cursor() as cursor:
        # sorted: two batches that create the same days must not wait for each other crosswise
        for day in sorted(days):
            cursor.execute("SELECT observability_ensure_day(%s, %s)", [series, day])


def keep_ahead(now: datetime) -> None:
    """Create the partitions of today and the days to come, so that ingest hardly ever has to."""
    for series in SERIES:
        ensure_days(series, [now.date() + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)])


def drop_before(series: str, cutoff: datetime) -> list[str]:
    """Drop whole partitions (chunks) that end at or before `cutoff`; return their names. Runs as the tables' owner."""
    if is_timescale():
        return _column("SELECT drop_chunks(%(series)s, older_than => %(cutoff)s)", series=series, cutoff=cutoff)
    dropped = []
    for name in _column(sql("partitions"), series=series):
        if part_end(name) <= cutoff:
            _drop_part(name)
            dropped.append(name)
    return dropped


def to_columns(rollup: str, cutoff: datetime) -> None:
    """Turn a rollup's chunks that end at or before `cutoff` into columns, a tenth in size. TimescaleDB alone does."""
    if not is_timescale():
        return
    for chunk in _column("SELECT show_chunks(%(view)s, older_than => %(cutoff)s)", view=rollup, cutoff=cutoff):
        with connections[owner()].cursor() as cursor:
            cursor.execute("CALL convert_to_columnstore(%s, if_not_columnstore => true)", [chunk])


def part_end(name: str) -> datetime:
    """Where a partition ends, told by its name: …_p20261130, …_p202611, …_p2026."""
    digits = name.rpartition("_p")[2]
    year, month, day = int(digits[:4]), int(digits[4:6] or 12), int(digits[6:8] or 1)
    if len(digits) == len("20261130"):
        return datetime(year, month, day, tzinfo=UTC) + timedelta(days=1)
    return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def _drop_part(name: str) -> None:
    with transaction.atomic(using=owner()), connections[owner()].cursor() as cursor:
        # a query that reads the day must not make all ingest queue up behind this drop; the next tick tries again
        cursor.execute("SET LOCAL lock_timeout = '2s'")
        cursor.execute(f"DROP TABLE {name}")


def _column(statement: str, **parameters: Any) -> list[str]:
    with connections[owner()].cursor() as cursor:
        cursor.execute(statement, parameters)
        return [str(value) for (value,) in cursor.fetchall()]


def is_timescale() -> bool:
    """Tell whether this database keeps its series in hypertables, not in partitions."""
    return not _is_partitioned(str(connections[DEFAULT_DB_ALIAS].settings_dict["NAME"]))


@cache
def _is_partitioned(_database: str) -> bool:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('inference_log')")
        (partitioned,) = cursor.fetchone()
    return bool(partitioned)


def table_of(rollup: str) -> str:
    """The table that holds a rollup's rows: itself, or what stands behind TimescaleDB's view."""
    if not is_timescale():
        return rollup
    (name,) = _column(sql("materialization"), view=rollup)
    return name


def copy_rows(series: str, types: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Append rows by binary COPY; `types` has their columns in order, each with its PostgreSQL type.

    The days that they fall into must exist: `ensure_days` first, in the same transaction.
    """
    if not rows:
        return
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        statement = f"COPY {series} ({', '.join(types)}) FROM STDIN (FORMAT BINARY)"
        with cursor.copy(statement) as copy:
            copy.set_types(list(types.values()))
            for row in rows:
                copy.write_row(row)


def copy_bytes(table: str, columns: Sequence[str], data: bytes, *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Append what packed.py has encoded; the days must exist."""
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    with connections[using].cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(data)


@cache
def sql(name: str) -> str:
    """The text of sql/<name>.sql."""
    return (_SQL / f"{name}.sql").read_text()


def fetch(statement: str, kind: type[R], **parameters: Any) -> list[R]:
    """Run a query with named parameters; its rows as `kind`."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(statement, parameters)
        return [kind(*row) for row in cursor.fetchall()]
