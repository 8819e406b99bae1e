"""How the story's versions are made. `farrier push MODEL --recipe demo.recipes:minilm_float32` calls one of these."""

from pathlib import Path

from aifb.importers.digits import pack_digits, train
from aifb.importers.minilm import pack_minilm
from aifb.importers.recipe import Built

SOURCE_TREE = Path(__file__).resolve().parent.parent
SEED = 1


def minilm_float32(path: Path) -> Built:
    """The embedder as published."""
    return Built(pack_minilm(path, build=SOURCE_TREE), "embedding", "float32")


def minilm_int8_per_row(path: Path) -> Built:
    """Four times smaller and as good: every row of a weight has its own scale."""
    packed = pack_minilm(path, build=SOURCE_TREE, quantise="int8_per_row")
    return Built(packed, "embedding", "int8 per row")


def minilm_int8_per_tensor(path: Path) -> Built:
    """The everyday mistake: one scale for a whole weight, so that its small rows drown."""
    packed = pack_minilm(path, build=SOURCE_TREE, quantise="int8_per_tensor")
    return Built(packed, "embedding", "int8 per tensor")


def digits_first(path: Path) -> Built:
    """The classifier after 12 passes over the training images."""
    return _digits(path, epochs=12)


def digits_retrained(path: Path) -> Built:
    """The same classifier, trained on for another 12."""
    return _digits(path, epochs=24)


def digits_once_more(path: Path) -> Built:
    """And for another 12: the one that is tampered with on its way."""
    return _digits(path, epochs=36)


def _digits(path: Path, *, epochs: int) -> Built:
    trained = train(SEED, epochs=epochs)
    packed = pack_digits(path, trained, build=SOURCE_TREE)
    return Built(packed, "classification", "float32", trained.baseline_metrics)
