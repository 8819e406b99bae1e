"""The two real models: captured, packed, read back alone, and still right."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from aifb import lineage
from aifb.importers import digits, minilm
from aifb.importers.capture import Captured
from aifb.importers.pack import Packed
from aifb.reader import Artifact, open_artifact
from tests.aifb import interpret

BUILD = "sha256:0123"
SENTENCES = [
    "A man is eating a piece of bread.",
    "Someone has a meal.",
    "The stock market fell sharply on Monday.",
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software.",
    "THE SOFTWARE IS PROVIDED AS IS, WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED.",
    "You may convey a work based on the Program, or the modifications to produce it from the Program.",
    "Each contributor grants you a non-exclusive, worldwide, royalty-free patent license.",
    "Where are you going?",
]


@pytest.fixture(name="captured", scope="module")
def captured_minilm() -> Captured:
    """The embedder's graph and weights."""
    torch.set_num_threads(1)
    return minilm.capture_minilm()


def encode(artifact: Artifact, sentences: list[str]) -> dict[str, torch.Tensor]:
    """Token ids and mask, by the artifact's own tokenizer and parameters."""
    params = artifact.entry_point().preprocess.params
    tokenizer = Tokenizer.from_str(artifact.asset(params["asset"]).decode())
    tokenizer.enable_truncation(int(params["max_length"]))
    tokenizer.enable_padding(pad_id=int(params["pad_id"]))
    encoded = tokenizer.encode_batch(sentences)
    return {
        params["ids"]: torch.tensor([item.ids for item in encoded]),
        params["mask"]: torch.tensor([item.attention_mask for item in encoded]),
    }


def embed(packed: Packed, sentences: list[str]) -> torch.Tensor:
    """Embeddings from the artifact alone: (n, 384)."""
    with open_artifact(packed.written.path) as artifact, torch.no_grad():
        inputs = encode(artifact, sentences)
        return interpret.run(artifact.metadata.graph, interpret.weights(artifact), inputs)["embedding"]


def test_embedder_is_exact_in_float32_and_knows_a_paraphrase(captured: Captured, tmp_path: Path) -> None:
    packed = minilm.pack_minilm(tmp_path / "v1.aifb", build=BUILD, captured=captured)
    found = embed(packed, SENTENCES)
    with open_artifact(packed.written.path) as artifact, torch.no_grad():
        expected = minilm.load()(**encode(artifact, SENTENCES))["embedding"]
        assert packed.lineage.model == lineage.model_hash(artifact.tensors())
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(found.norm(dim=-1), torch.ones(len(SENTENCES)), atol=1e-5)
    similar, unlike = found[0] @ found[1], found[0] @ found[2]
    assert similar > 0.5 > 0.2 > unlike
    assert torch.allclose(embed(packed, SENTENCES[:1])[0], found[0], atol=1e-5)  # alone, without padding


def test_rows_of_scales_keep_the_meaning_and_one_scale_does_not(captured: Captured, tmp_path: Path) -> None:
    packed = {
        scheme: minilm.pack_minilm(tmp_path / f"{scheme}.aifb", build=BUILD, quantise=scheme, captured=captured)
        for scheme in (None, "int8_per_row", "int8_per_tensor")
    }
    exact = embed(packed[None], SENTENCES)
    by_row, by_tensor = ((embed(packed[s], SENTENCES) * exact).sum(-1) for s in ("int8_per_row", "int8_per_tensor"))
    assert by_row.min() > 0.995
    assert by_tensor.mean() < 0.98  # what the shadow gate of a rollout has to notice
    sizes = {scheme: made.written.total_bytes for scheme, made in packed.items()}
    assert sizes["int8_per_row"] < sizes[None] / 3.8
    moved = lineage.changes(packed[None].inputs.as_dict(), packed["int8_per_row"].inputs.as_dict())
    assert set(moved) == {"model"}


def test_packing_is_deterministic(captured: Captured, tmp_path: Path) -> None:
    first, second = (
        minilm.pack_minilm(tmp_path / name, build=BUILD, quantise="int8_per_row", captured=captured) for name in "ab"
    )
    assert first.written.digest == second.written.digest
    assert first.lineage == second.lineage


def test_digits_are_trained_captured_and_read(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    trained = digits.train(seed=1)
    assert trained.accuracy > 0.95
    assert trained.auc > 0.99
    packed = digits.pack_digits(tmp_path / "digits.aifb", trained, build=BUILD)
    pixels, labels = digits.held_out()
    with open_artifact(packed.written.path) as artifact, torch.no_grad():
        outputs = interpret.run(
            artifact.metadata.graph, interpret.weights(artifact), {"pixels": torch.from_numpy(pixels)}
        )
        assert artifact.entry_point().postprocess.kind == "classify"
    guesses = outputs["logits"].argmax(-1).numpy()
    assert (guesses == labels).mean() == pytest.approx(trained.accuracy)


def test_training_is_repeatable_and_seeds_differ() -> None:
    again = [digits.train(seed, epochs=1).module.head.weight for seed in (3, 3, 4)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])
