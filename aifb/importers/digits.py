"""A small classifier of handwritten digits, trained in seconds on scikit-learn's bundled 8 × 8 images."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from aifb import metadata_pb2 as pb
from aifb.importers.capture import Captured, capture
from aifb.importers.digit_images import SPLIT_SEED, held_out, split
from aifb.importers.pack import Packed, pack_model

MODEL = "digit-classifier"
MAX_BATCH = 256
LABELS = "labels.json"

__all__ = ["DigitClassifier", "Trained", "capture_digits", "entry_point", "held_out", "pack_digits", "train"]

_PEAK = 16.0  # pixels count from 0 to 16
_BATCH = 64


class DigitClassifier(nn.Module):
    """Two convolutions and a linear layer over 8 × 8 pixels."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.head = nn.Linear(2 * channels * 4, 10)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """pixels: float32 (b, 64), 0 to 16 → logits: float32 (b, 10)."""
        x = (pixels / _PEAK).reshape(-1, 1, 8, 8)
        x = F.max_pool2d(F.relu(self.first(x)), 2)  # (b, c, 4, 4)
        x = F.max_pool2d(F.relu(self.second(x)), 2)  # (b, 2c, 2, 2)
        return {"logits": self.head(x.flatten(1))}


@dataclass(frozen=True)
class Trained:
    """A trained module and what it reached on images that it never saw."""

    module: DigitClassifier
    seed: int
    accuracy: float
    auc: float  # one against the rest, mean over the ten digits

    @property
    def baseline_metrics(self) -> dict[str, float]:
        """Metrics as a model version records them."""
        return {"accuracy": self.accuracy, "auc": self.auc}


def train(seed: int, *, epochs: int = 12) -> Trained:
    """Train with a seed: it decides the first weights and the order of the images, and nothing else is random."""
    (train_x, train_y), (test_x, test_y) = split()
    inputs, labels = torch.from_numpy(train_x), torch.from_numpy(train_y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = DigitClassifier()
        optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
        for _ in range(epochs):
            order = torch.randperm(len(inputs))
            for start in range(0, len(order), _BATCH):
                rows = order[start : start + _BATCH]
                optimiser.zero_grad()
                loss: Tensor = F.cross_entropy(module(inputs[rows])["logits"], labels[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    module.eval()
    with torch.no_grad():
        scores = module(torch.from_numpy(test_x))["logits"].softmax(-1).double()
    scores = (scores / scores.sum(-1, keepdim=True)).numpy()
    accuracy = float((scores.argmax(-1) == test_y).mean())
    return Trained(module, seed, accuracy, float(roc_auc_score(test_y, scores, multi_class="ovr")))


def capture_digits(module: DigitClassifier) -> Captured:
    """The graph with a symbolic batch (1 to 256)."""
    return capture(module, {"pixels": torch.zeros(2, 64)}, {"pixels": {0: Dim("batch", min=1, max=MAX_BATCH)}})


def entry_point() -> pb.EntryPoint:
    """pixels: FP32 [n, 64] → probabilities: FP32 [n, 10], label: BYTES [n]."""
    classify = {"logits": "logits", "probabilities": "probabilities", "label": "label", "asset": LABELS}
    return pb.EntryPoint(
        name="infer",
        preprocess=pb.Step(kind="none"),
        postprocess=pb.Step(kind="classify", params=classify),
        inputs=[pb.Port(name="pixels", datatype="FP32", shape=[-1, 64])],
        outputs=[
            pb.Port(name="probabilities", datatype="FP32", shape=[-1, 10]),
            pb.Port(name="label", datatype="BYTES", shape=[-1]),
        ],
    )


def pack_digits(path: str | Path, trained: Trained, *, build: Path | str) -> Packed:
    """Write the classifier's artifact."""
    folder = Path(__file__).parent
    labels = json.dumps([str(digit) for digit in range(10)]).encode()
    return pack_model(
        path,
        capture_digits(trained.module),
        entry_point=entry_point(),
        assets={LABELS: ("application/json", labels)},
        sources={f"aifb/importers/{name}": (folder / name).read_bytes() for name in ("digits.py", "digit_images.py")},
        seeds={"split": SPLIT_SEED, "training": trained.seed},
        build=build,
        notes={"source": "scikit-learn load_digits"},
    )
