"""`farrier rollout`: start one, wait for its verdict, decide it."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.table import Table

from cli.client import Client
from cli.context import EXIT_ENDED_BADLY, client_of, err, fail, out

app = typer.Typer(no_args_is_help=True)

TERMINAL = frozenset({"completed", "rolled_back", "aborted", "superseded"})
POLL_S = 2.0

Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; it goes into the audit.")]
RolloutRef = Annotated[str, typer.Argument(metavar="ROLLOUT", help="Number (42) or id.")]


def describe(rollout: dict[str, Any]) -> str:
    """One line: what moves where, and how far it is."""
    baseline = f"v{rollout['baseline']} → " if rollout["baseline"] else ""
    line = f"#{rollout['number']} {rollout['model']} {baseline}v{rollout['version']}: {rollout['phase']}"
    if rollout["phase"] == "paused" and rollout["pause_reason"]:
        line += f" ({rollout['pause_reason']})"
    if rollout["phase"] not in TERMINAL:
        stage = rollout["stages"][rollout["stage_index"]]
        line += f", stage {stage['index'] + 1} of {len(rollout['stages'])}: {stage['kind']}"
    return line


def find(client: Client, ref: str) -> dict[str, Any]:
    """Return the rollout that `ref` (number or id) names."""
    wanted = ref.lstrip("#")
    if not wanted.isdigit():
        return dict(client.get(f"rollouts/{wanted}"))
    for row in client.all("rollouts", number=wanted):
        return dict(client.get(f"rollouts/{row['id']}"))
    raise fail(f"There is no rollout #{wanted}; see «farrier rollout list».")


@app.command()
def start(
    context: typer.Context,
    model: str,
    version: int,
    reason: Reason,
    strategy: Annotated[str, typer.Option(help="Name of the strategy.")] = "standard",
    pool: Annotated[str, typer.Option(help="Name of the pool of nodes.")] = "default",
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it ends; exit 0 completed, 3 otherwise.")] = False,
    timeout_s: Annotated[float, typer.Option(help="With --wait: give up watching after this long (exit 1).")] = 7_200.0,
) -> None:
    """Start a rollout of VERSION of MODEL."""
    with client_of(context) as client:
        body = {"model": model, "version": version, "strategy": strategy, "pool": pool, "reason": reason}
        rollout = client.post("rollouts", body)
        out.print(f"{describe(rollout)}\n{client.server}/rollouts/{rollout['id']}/", highlight=False)
        if wait:
            _watch(client, rollout["id"], timeout_s)


@app.command()
def wait(
    context: typer.Context,
    rollout: RolloutRef,
    timeout_s: Annotated[float, typer.Option(help="Give up watching after this long (exit 1).")] = 7_200.0,
) -> None:
    """Watch a rollout until it ends: exit 0 completed, 3 rolled back, aborted or superseded."""
    with client_of(context) as client:
        _watch(client, find(client, rollout)["id"], timeout_s)


def _watch(client: Client, rollout_id: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        rollout = client.get(f"rollouts/{rollout_id}")
        line = describe(rollout)
        if line != said:
            err.print(line)
            said = line
        if rollout["phase"] == "completed":
            return
        if rollout["phase"] in TERMINAL:
            raise fail(rollout["decision"] or line, EXIT_ENDED_BADLY)
        if time.monotonic() > deadline:
            raise fail(f"Still {rollout['phase']} after {timeout_s:.0f} s; it goes on without being watched.")
        time.sleep(POLL_S)


@app.command("list")
def list_rollouts(
    context: typer.Context, model: Annotated[str | None, typer.Option(help="Only of this model.")] = None
) -> None:
    """List rollouts, newest first."""
    table = Table("#", "model", "from", "to", "phase", "asked by", "decision")
    with client_of(context) as client:
        for row in client.all("rollouts", model=model):
            table.add_row(
                str(row["number"]),
                row["model"],
                f"v{row['baseline']}" if row["baseline"] else "–",
                f"v{row['version']}",
                row["phase"],
                row["requested_by"],
                row["decision"],
            )
    out.print(table)


@app.command("show")
def show_rollout(context: typer.Context, rollout: RolloutRef) -> None:
    """Show a rollout's stages and what its metrics say."""
    with client_of(context) as client:
        found = find(client, rollout)
        evidence = client.get(f"rollouts/{found['id']}/evidence")
    out.print(describe(found), highlight=False)
    if found["decision"]:
        out.print(found["decision"], highlight=False)
    table = Table("stage", "metric", "verdict", "estimate", "interval", "margin", "samples")
    for row in evidence["results"]:
        interval = "–" if row["low"] is None else f"{row['low']:.4f} … {row['high']:.4f}"
        table.add_row(
            f"{row['stage'] + 1} {row['kind']}",
            row["metric"],
            row["verdict"],
            "–" if row["estimate"] is None else f"{row['estimate']:.4f}",
            interval,
            "–" if row["margin"] is None else f"{row['margin']:.4f}",
            str(row["samples"]),
        )
    out.print(table)


def _decide(context: typer.Context, ref: str, verb: str, reason: str) -> None:
    with client_of(context) as client:
        rollout = find(client, ref)
        body = {"reason": reason, "expected_revision": rollout["revision"]}
        after = client.post(f"rollouts/{rollout['id']}:{verb}", body)
        out.print(describe(after), highlight=False)


@app.command()
def approve(context: typer.Context, rollout: RolloutRef, reason: Reason) -> None:
    """Approve the evidence as it stands; needs the scope rollouts:approve and another person than the requester."""
    _decide(context, rollout, "approve", reason)


@app.command()
def reject(context: typer.Context, rollout: RolloutRef, reason: Reason) -> None:
    """Reject the evidence: the rollout goes back."""
    _decide(context, rollout, "reject", reason)


@app.command()
def abort(context: typer.Context, rollout: RolloutRef, reason: Reason) -> None:
    """End a rollout now and go back; comes before everything else."""
    _decide(context, rollout, "abort", reason)


@app.command()
def pause(context: typer.Context, rollout: RolloutRef, reason: Reason) -> None:
    """Hold a rollout where it is; automatic rollback stays armed."""
    _decide(context, rollout, "pause", reason)


@app.command()
def resume(context: typer.Context, rollout: RolloutRef, reason: Reason) -> None:
    """Let a paused rollout go on."""
    _decide(context, rollout, "resume", reason)
