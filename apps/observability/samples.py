"""Minutes of GPU samples, as far as the detector needs them: a stand-in for the store's own module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from protocol.metrics import GPU_BY_NAME

Floats = NDArray[np.float32]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rolled_until() -> datetime:
    """Minutes that begin before it are closed."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(time) FROM gpu_minute")
        (newest,) = cursor.fetchone()
    return EPOCH if newest is None else newest + timedelta(minutes=1)


def minute_matrix(metric: str, gpus: Sequence[int], first_minute: int, last_minute: int) -> Floats:
    """Means of the closed Unix minutes first..last, (minutes, gpus), NaN where there is none."""
    name = GPU_BY_NAME[metric].name  # refuses what isn't a column
    matrix = np.full((last_minute - first_minute + 1, len(gpus)), np.nan, np.float32)
    place = {gpu: column for column, gpu in enumerate(gpus)}
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT extract(epoch FROM time)::bigint / 60, gpu, {name}_sum / {name}_count FROM gpu_minute"  # noqa: S608
            f" WHERE gpu = ANY(%s) AND time BETWEEN %s AND %s AND {name}_count > 0",
            [list(gpus), EPOCH + timedelta(minutes=first_minute), EPOCH + timedelta(minutes=last_minute)],
        )
        for minute, gpu, mean in cursor.fetchall():
            matrix[minute - first_minute, place[gpu]] = mean
    return matrix


def copy_history(gpu: int, columns: Mapping[str, Floats], times: NDArray[np.float64], simulated: bool) -> None:
    """Put minutes straight into gpu_minute: `times` in Unix seconds, one value a column and time."""
    names = ", ".join(f"{name}_sum, {name}_count" for name in columns)
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY gpu_minute (time, gpu, simulated, {names}) FROM STDIN") as copy,
    ):
        for index, time in enumerate(times):
            values = [part for column in columns.values() for part in (float(column[index]), 1)]
            copy.write_row((EPOCH + timedelta(seconds=float(time)), gpu, simulated, *values))
