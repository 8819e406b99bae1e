"""`farrier`: what CI and people type. Exit status 0 done, 1 failed, 2 wrong usage, 3 a rollout that ended badly."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import artifact, push, rollout, show
from cli.context import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Fits AI models to GPU fleets: push versions, start rollouts, see what runs where.",
)
app.command("push")(push.push)
app.command("versions")(show.versions)
app.command("models")(show.models)
app.command("nodes")(show.nodes)
app.command("holds")(show.holds)
app.command("alerts")(show.alerts)
app.command("verify")(artifact.verify)
app.command("keygen")(artifact.keygen)
app.add_typer(rollout.app, name="rollout", help="Start, watch and decide rollouts.")


@app.callback()
def main(
    context: typer.Context,
    server: Annotated[str, typer.Option(envvar="FARRIER_SERVER", help="Origin of the control plane.")] = (
        "http://127.0.0.1:8700"
    ),
    token: Annotated[
        str,
        typer.Option(envvar="FARRIER_TOKEN", help="API token; its scopes bound what you may do.", show_default=False),
    ] = "",
) -> None:
    """Keep the global options for the commands."""
    context.obj = Settings(server=server, token=token)


if __name__ == "__main__":
    app()
