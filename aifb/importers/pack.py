"""From a captured model to a whole artifact with its lineage."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aifb import lineage as lineages
from aifb import metadata_pb2 as pb
from aifb.errors import AifbError
from aifb.importers.capture import Captured
from aifb.importers.quantise import SCHEMES, Quantised
from aifb.writer import Asset, Written, write_artifact


@dataclass(frozen=True)
class Packed:
    """The written artifact, its lineage, and what went into it. `graph_hash` is recorded beside the lineage."""

    written: Written
    lineage: lineages.Lineage
    inputs: lineages.LineageInputs
    graph_hash: str


def pack_model(
    path: str | Path,
    captured: Captured,
    *,
    entry_point: pb.EntryPoint,
    assets: Mapping[str, Asset],
    sources: Mapping[str, bytes],
    seeds: Mapping[str, int],
    build: Path | str,
    quantise: str | None = None,
    packages: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Packed:
    """Quantise (None, "int8_per_row" or "int8_per_tensor"), write the artifact and compute its four-part lineage.

    `sources` are the feature pipeline's files by name, `build` is the source tree or the image id that packs,
    `packages` the versions of what changes numbers (default: those installed). The data schema is the entry point.
    Raises AifbError: not_importable for an unknown scheme, and the writer's codes.
    """
    if quantise is not None and quantise not in SCHEMES:
        raise AifbError("not_importable", f"The scheme {quantise!r} is unknown; known are {', '.join(SCHEMES)}.")
    quantised = SCHEMES[quantise](captured.tensors) if quantise else Quantised(captured.tensors, {})
    written = write_artifact(
        path,
        tensors=quantised.tensors,
        graph=captured.graph,
        assets=assets,
        entry_points=[entry_point],
        quantisation=quantised.quantisation,
        notes=notes,
    )
    schema = entry_point.SerializeToString(deterministic=True)
    inputs = lineages.LineageInputs(
        model=lineages.model_entries(quantised.tensors),
        data=lineages.data_entries(sources, schema, seeds, {name: content for name, (_, content) in assets.items()}),
        env=dict(packages if packages is not None else lineages.number_packages()),
        build=lineages.build_entries(build),
    )
    return Packed(written, inputs.lineage(), inputs, lineages.graph_hash(captured.graph))
