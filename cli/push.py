"""`farrier push`: capture, pack, hash, sign and upload one version. The release key never leaves the publisher."""

from __future__ import annotations

import base64
import importlib
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from aifb.manifest import MANIFEST_TYPE, make_manifest
from aifb.signing import load_private_key, sign
from cli.client import Client
from cli.context import EXIT_USAGE, client_of, err, fail, out

if TYPE_CHECKING:
    from aifb.importers.recipe import Built, Recipe


def push(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Slug of the registered model; made at its first push.")],
    recipe: Annotated[str, typer.Option(help="«module:function» that writes the artifact (docs/howto/own-model.md).")],
    key: Annotated[Path, typer.Option(help="The release key, unencrypted PEM.", exists=True, dir_okay=False)],
    notes: Annotated[str, typer.Option(help="A line for people who read the version's page.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Keep the artifact in this folder.")] = None,
) -> None:
    """Build the artifact by RECIPE, sign it and publish it as the next version of MODEL."""
    make = _load(recipe)
    private_key = load_private_key(key.read_bytes())
    with client_of(context) as client, tempfile.TemporaryDirectory(prefix="farrier-push-") as scratch:
        path = (keep or Path(scratch)) / f"{model}.aifb"
        err.print(f"Building {model} by {recipe} …")
        built = make(path)
        written = built.packed.written
        err.print(f"Packed {written.total_bytes / 1e6:.1f} MB, digest {written.digest[:16]}…")
        reserved = client.post(
            f"models/{model}/versions:reserve", {"source_commit": _commit(), "notes": notes, "task": built.task}
        )
        _upload(client, path, written.digest)
        manifest = make_manifest(
            model=model,
            version=reserved["number"],
            digest=written.digest,
            length=written.total_bytes,
            flat_sha3_512=written.flat_sha3_512,
            lineage=built.packed.lineage.as_dict(),
            created=datetime.now(UTC).replace(microsecond=0),
        )
        body = _publication(built, sign(manifest, MANIFEST_TYPE, [private_key]))
        client.post(f"models/{model}/versions/{reserved['number']}:publish", body)
        out.print(f"{model} v{reserved['number']} published: {built.packed.lineage.identity[:20]}…", highlight=False)


def _publication(built: Built, envelope: bytes) -> dict[str, Any]:
    return {
        "digest": built.packed.written.digest,
        "manifest": base64.b64encode(envelope).decode(),
        "lineage_inputs": built.packed.inputs.as_dict(),
        "graph_hash": built.packed.graph_hash,
        "baseline_metrics": dict(built.baseline_metrics),
        "precision": built.precision,
    }


def _upload(client: Client, path: Path, digest: str) -> None:
    columns = (TextColumn("Uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        bar = progress.add_task("upload", total=path.stat().st_size)
        client.upload(digest, path, sent=lambda count: progress.advance(bar, count))


def _load(recipe: str) -> Recipe:
    module_name, _, function = recipe.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a recipe lies in the publisher's own folder
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        raise fail(f"The recipe's module {module_name} can't be imported: {missing}.", EXIT_USAGE) from None
    made = getattr(module, function or "build", None)
    if not callable(made):
        raise fail(f"{module_name} has no function {function or 'build'}; write --recipe module:function.", EXIT_USAGE)
    return cast("Recipe", made)


def _commit() -> str:
    """Return the commit that the publisher's folder is at, with «+» when it has been changed since; else nothing."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return ""
    changed = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
