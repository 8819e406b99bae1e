"""`farrier models | versions | nodes | holds | alerts`: what there is and what runs where."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.context import client_of, out

AsJson = Annotated[bool, typer.Option("--json", help="Print the API's JSON instead of a table.")]


def _print(rows: list[dict[str, Any]], columns: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(cell(row)) for cell in columns.values()))
    out.print(table)


def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the registered models."""
    with client_of(context) as client:
        rows = list(client.all("models"))
    columns = {"model": lambda row: row["slug"], "task": lambda row: row["task"] or "–"}
    _print(rows, columns, as_json)


def versions(context: typer.Context, model: str, as_json: AsJson = False) -> None:
    """List the versions of MODEL with their lineage, newest first."""
    with client_of(context) as client:
        rows = list(client.all(f"models/{model}/versions"))
    columns = {
        "version": lambda row: f"v{row['number']}",
        "state": lambda row: row["state"],
        "aliases": lambda row: ", ".join(row["aliases"]) or "–",
        "precision": lambda row: row["precision"] or "–",
        "model": lambda row: row["model_hash"][:12] or "–",
        "data": lambda row: row["data_hash"][:12] or "–",
        "env": lambda row: row["env_hash"][:12] or "–",
        "build": lambda row: row["build_hash"][:12] or "–",
    }
    _print(rows, columns, as_json)


def nodes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the nodes and what they say they run."""
    with client_of(context) as client:
        rows = list(client.all("nodes"))
    columns = {
        "node": lambda row: row["name"],
        "zone": lambda row: row["zone"],
        "phase": lambda row: row["phase"],
        "last seen": lambda row: row["last_seen_at"] or "never",
        "runs": lambda row: (
            ", ".join(f"{item['model']} v{item['version']} {item['state']}" for item in row["deployments"]) or "–"
        ),
    }
    _print(rows, columns, as_json)


def holds(context: typer.Context, as_json: AsJson = False) -> None:
    """List the digests that must not be rolled out until a named person lifts the hold."""
    with client_of(context) as client:
        rows = list(client.all("holds", active="true"))
    columns = {
        "model": lambda row: row["model"],
        "version": lambda row: f"v{row['version']}",
        "digest": lambda row: row["digest"][:12],
        "placed": lambda row: row["placed_at"],
        "why": lambda row: row["reason"],
    }
    _print(rows, columns, as_json)


def alerts(
    context: typer.Context,
    state: Annotated[str, typer.Option(help="open, pending, firing, no_data, resolved or all.")] = "open",
    node: Annotated[str, typer.Option(help="Only those of this node.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the alerts, the most urgent first."""
    with client_of(context) as client:
        rows = list(client.all("alerts", state=state, **({"node": node} if node else {})))
    columns = {
        "state": lambda row: row["state"],
        "severity": lambda row: row["severity"],
        "since": lambda row: row["firing_at"] or row["pending_at"],
        "what": lambda row: row["summary"] + (" (simulated)" if row["simulated"] else ""),
        "with": lambda row: row["owner"] or "nobody",
    }
    _print(rows, columns, as_json)
