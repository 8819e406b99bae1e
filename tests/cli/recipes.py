"""Recipes of the tests, as a publisher would write them."""

from pathlib import Path

from aifb.importers.digits import pack_digits, train
from aifb.importers.recipe import Built

HERE = Path(__file__).resolve().parent


def digits(path: Path) -> Built:
    """A real, barely trained classifier."""
    trained = train(3, epochs=1)
    return Built(pack_digits(path, trained, build=HERE), "classification", "float32", trained.baseline_metrics)


def broken(path: Path) -> Built:
    """A recipe that fails half-way."""
    path.write_bytes(b"half an artifact")
    raise RuntimeError("the training data is gone")
