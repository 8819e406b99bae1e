"""The four-part lineage of a model version: what its weights, data pipeline, packages and build were.

Each part is first written down as entries (name → what it was) and hashed from them, so that two versions can be
compared entry by entry and a person sees which tensor, source file or package moved.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata as installed
from pathlib import Path

from aifb import documents
from aifb import metadata_pb2 as pb
from aifb.tensors import TensorData

PIECE_BYTES = 16 << 20
PARTS = ("model", "data", "env", "build")
# What computes or prepares numbers; whatever else is installed can't change a model's output.
NUMBER_PACKAGES = ("numpy", "onnxruntime", "safetensors", "scikit-learn", "tokenizers", "torch")

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "staticfiles", "test-artifacts", "var"})

Entries = Mapping[str, str]


@dataclass(frozen=True)
class Lineage:
    """The four hashes, each SHA-256 in hex."""

    model: str
    data: str
    env: str
    build: str

    @property
    def identity(self) -> str:
        """The identity of a version, as every response and log row names it."""
        return f"{self.model}_{self.data}_{self.env}_{self.build}"

    def as_dict(self) -> dict[str, str]:
        """The hashes by part, as a manifest holds them."""
        return asdict(self)


@dataclass(frozen=True)
class LineageInputs:
    """What went into each hash."""

    model: Entries
    data: Entries
    env: Entries
    build: Entries

    def lineage(self) -> Lineage:
        """Hash every part."""
        return Lineage(*(hash_entries(part, getattr(self, part)) for part in PARTS))

    def as_dict(self) -> dict[str, dict[str, str]]:
        """The entries by part, ready for JSON."""
        return {part: dict(getattr(self, part)) for part in PARTS}


@dataclass(frozen=True)
class PartChange:
    """How one part differs between two versions: names of entries, sorted."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


def hash_entries(part: str, entries: Entries) -> str:
    """SHA-256 over the part's name and its entries as canonical JSON."""
    return hashlib.sha256(documents.canonical({"part": part, "entries": dict(entries)})).hexdigest()


def changes(before: Mapping[str, Entries], after: Mapping[str, Entries]) -> dict[str, PartChange]:
    """What moved between two versions' inputs (as LineageInputs.as_dict gives them): only the parts that differ."""
    found = {}
    for part in PARTS:
        old, new = before.get(part, {}), after.get(part, {})
        if old != new:
            found[part] = PartChange(
                tuple(sorted(new.keys() - old.keys())),
                tuple(sorted(old.keys() - new.keys())),
                tuple(sorted(name for name in old.keys() & new.keys() if old[name] != new[name])),
            )
    return found


def model_entries(tensors: Mapping[str, TensorData]) -> dict[str, str]:
    """Per tensor its dtype, shape and digest (SHA-256 of the SHA-256s of its 16 MiB pieces); an alias by its target."""
    return {
        name: f"alias of {tensor.alias_of}"
        if tensor.alias_of
        else f"{tensor.dtype} {list(tensor.shape)} {_pieces_digest(tensor.buffer)}"
        for name, tensor in sorted(tensors.items())
    }


def model_hash(tensors: Mapping[str, TensorData]) -> str:
    """The model part from tensors, such as Artifact.tensors() gives them."""
    return hash_entries("model", model_entries(tensors))


def data_entries(
    sources: Mapping[str, bytes], schema: bytes, seeds: Mapping[str, int], assets: Mapping[str, bytes]
) -> dict[str, str]:
    """Per source file (line ends normalised), schema, preprocessing seed and asset (tokenizer, labels) its digest."""
    entries = {f"source {name}": _sha256(_lf(content)) for name, content in sources.items()}
    entries |= {f"asset {name}": _sha256(content) for name, content in assets.items()}
    entries |= {f"seed {name}": str(seed) for name, seed in seeds.items()}
    return entries | {"schema": _sha256(_lf(schema))}


def data_hash(
    sources: Mapping[str, bytes], schema: bytes, seeds: Mapping[str, int], assets: Mapping[str, bytes]
) -> str:
    """The data part from the feature pipeline's sources, its schema, seeds and assets."""
    return hash_entries("data", data_entries(sources, schema, seeds, assets))


def number_packages() -> dict[str, str]:
    """The installed versions of the packages that change numbers."""
    versions = {}
    for name in NUMBER_PACKAGES:
        try:
            versions[name] = installed.version(name)
        except installed.PackageNotFoundError:
            continue  # not installed, so it can't have changed a number
    return versions


def env_hash(packages: Mapping[str, str]) -> str:
    """The env part from package versions by name."""
    return hash_entries("env", packages)


def build_entries(build: Path | str) -> dict[str, str]:
    """A source tree's files by path with their digests, or a container image's id."""
    if isinstance(build, str):
        return {"image": build}
    return {str(path.relative_to(build)): _sha256(_lf(path.read_bytes())) for path in _source_files(build)}


def build_hash(build: Path | str) -> str:
    """The build part from a source tree (Path) or an image id (str)."""
    return hash_entries("build", build_entries(build))


def graph_hash(graph: pb.Graph) -> str:
    """SHA-256 of a graph as it is serialised: recorded beside the lineage, not a part of it."""
    return _sha256(graph.SerializeToString(deterministic=True))


def _source_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _SKIPPED_FOLDERS or path.suffix in (".pyc", ".egg-info"):
            continue
        if path.is_symlink():
            continue  # it leads to a file that is listed itself, or out of the tree
        if path.is_dir():
            yield from _source_files(path)
        elif path.is_file():
            yield path


def _pieces_digest(buffer: bytes | memoryview) -> str:
    view = memoryview(buffer).cast("B")
    pieces = (hashlib.sha256(view[at : at + PIECE_BYTES]).digest() for at in range(0, len(view), PIECE_BYTES))
    return _sha256(b"".join(pieces))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lf(content: bytes) -> bytes:
    """Line ends as LF: a checkout on another system is the same source."""
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
