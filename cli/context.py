"""What every command shares: where the control plane is, who asks, how errors leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from rich.console import Console

from aifb.errors import AifbError
from cli.client import ApiError, Client, Unreachable

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_ENDED_BADLY = 3  # a rollout that was rolled back or aborted

out = Console()
err = Console(stderr=True, highlight=False)


@dataclass
class Settings:
    """The global options."""

    server: str
    token: str


def fail(sentence: str, status: int = EXIT_FAILURE) -> typer.Exit:
    """Print one sentence to stderr and return the exit to raise."""
    err.print(f"[bold red]farrier:[/] {sentence}", soft_wrap=True)
    return typer.Exit(status)


@contextmanager
def client_of(context: typer.Context) -> Iterator[Client]:
    """Open the client; turn every refusal into a sentence on stderr and exit status 1."""
    settings: Settings = context.obj
    if not settings.token:
        raise fail(
            "No API token: pass --token or set FARRIER_TOKEN (make one under Tokens in the console).", EXIT_USAGE
        )
    client = Client(settings.server, settings.token)
    try:
        yield client
    except ApiError as refused:
        raise fail(f"{refused} [dim]({refused.code})[/]") from None
    except Unreachable as away:
        raise fail(str(away)) from None
    except AifbError as bad:
        raise fail(f"{bad} [dim]({bad.code})[/]") from None
    finally:
        client.close()
