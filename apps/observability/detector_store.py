"""A detector's state and scores as bytes: one row a phase, so that a minute reads and writes only what it touches."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np
from django.db.models import BinaryField, F, Func, Value
from numpy.typing import NDArray

from apps.observability import detector
from apps.observability.decompose import DAY, WEEK, Floats
from apps.observability.detector import VECTORS, Scores, State
from apps.observability.models import DetectorGroup, DetectorState

BATCH_ROWS = 100  # 16 kB each
WEEK_BASE = DAY  # phases of the week come after those of the day
FLOAT = np.dtype("<f4")
SCORE = np.dtype([("expected", "<f4"), ("scale", "<f4"), ("z", "<f4"), ("kind", "u1")])  # 13 bytes


ALL_PHASES = frozenset(range(DAY + WEEK))
VECTOR_PHASES = {name: -1 - place for place, name in enumerate(VECTORS)}


def phases_of(minutes: Iterable[int]) -> set[int]:
    """The rows that these Unix minutes touch, vectors aside."""
    found: set[int] = set()
    for minute in minutes:
        found |= {detector.season_phase(minute), WEEK_BASE + detector.week_phase(minute)}
    return found


def load(group: DetectorGroup, phases: Set[int], floor: float) -> State:
    """Return the group's state with these phases; others are zeros, and must be neither used nor saved."""
    state = State.empty(len(group.gpus), floor)
    rows = DetectorState.objects.filter(group=group)
    if phases != ALL_PHASES:
        rows = rows.filter(phase__in=[*phases, *VECTOR_PHASES.values()])
    for phase, stored in rows.values_list("phase", "vector"):
        # GPUs that joined after it was written are still unknown in it
        known = np.frombuffer(stored, FLOAT)
        _row(state, phase)[: len(known)] = known
    return state


def save(group: DetectorGroup, state: State, phases: Iterable[int]) -> None:
    """Write these phases and all vectors."""
    rows = [
        DetectorState(group=group, phase=phase, vector=_row(state, phase).astype(FLOAT, copy=False).tobytes())
        for phase in [*sorted(phases), *VECTOR_PHASES.values()]
    ]
    DetectorState.objects.bulk_create(
        rows,
        batch_size=BATCH_ROWS,
        update_conflicts=True,
        unique_fields=["group", "phase"],
        update_fields=["vector"],
    )


def pack(scores: Scores) -> bytes:
    """One minute's scores as they are stored."""
    packed = np.empty(len(scores.kind), SCORE)
    packed["expected"], packed["scale"], packed["z"] = scores.expected, scores.scale, scores.z
    packed["kind"] = scores.kind
    return packed.tobytes()


def unpack(stored: bytes | memoryview) -> NDArray[np.void]:
    """The scores of a group in a minute, or of one GPU, as an array of SCORE."""
    return np.frombuffer(stored, SCORE)


def one_gpu(column: str, place: int, width: int) -> Func:
    """Expression for the bytes of the GPU at `place` of an array with so many bytes each; short where it isn't in."""
    return Func(F(column), Value(place * width + 1), Value(width), function="substring", output_field=BinaryField())


def _row(state: State, phase: int) -> Floats:
    if phase < 0:
        vector: Floats = getattr(state, VECTORS[-1 - phase])
        return vector
    season: Floats = state.season[phase] if phase < WEEK_BASE else state.week[phase - WEEK_BASE]
    return season
