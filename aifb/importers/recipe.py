"""What a recipe gives `farrier push`: a packed artifact and what the registry should know beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aifb.importers.pack import Packed


@dataclass(frozen=True)
class Built:
    """A recipe's result. `baseline_metrics` are the publisher's own, such as {"auc": 0.99}."""

    packed: Packed
    task: str = ""  # «embedding», «classification»
    precision: str = "float32"
    baseline_metrics: Mapping[str, float] = field(default_factory=dict)


Recipe = Callable[[Path], Built]  # writes the artifact to the path it is given
