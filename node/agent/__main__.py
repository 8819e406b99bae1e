"""The node agent's command line: run it, look at a home, end all that belongs to one."""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from node.agent import AGENT_VERSION
from node.agent.errors import AgentError
from node.agent.gateway import Listen
from node.agent.home import Home
from node.agent.lifecycle import AGENT, shutdown, status
from node.agent.loop import Agent
from node.agent.preflight import raise_open_files
from node.agent.processes import find
from node.agent.services import Records
from node.agent.settings import MAX_GPUS, HardwareMode, Settings

log = logging.getLogger("agent")


def main(arguments: list[str] | None = None, *, now: Callable[[], float] = time.time) -> int:
    """Run the command by the wall clock `now`; returns its exit status (1: it failed and said why, 2: usage)."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] in (["shutdown"], ["status"]):
        return _tool(words)
    settings = _settings(_run_parser().parse_args(words))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    logging.getLogger("httpcore2").setLevel(logging.WARNING)
    try:
        return _run(settings, now)
    except (AgentError, OSError) as failed:
        log.error("%s", failed)
        return 1


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m node.agent",
        description=f"Farrier's node agent {AGENT_VERSION}. Also: `shutdown --home DIR`, `status --home DIR`.",
    )
    parser.add_argument("--home", type=Path, required=True, help="folder of this node's state, private to its user")
    parser.add_argument("--server", required=True, help="address of the control plane, such as https://farrier.example")
    parser.add_argument("--name", required=True, help="this node's name, [a-z0-9-], at most 63 characters")
    parser.add_argument("--zone", required=True, help="where this node stands, [a-z0-9-]")
    parser.add_argument("--join-token-file", type=Path, help="the join token; needed until the node has enrolled")
    parser.add_argument("--ca-file", type=Path, help="PEM file of the authorities to believe, instead of the system's")
    parser.add_argument("--gateway-host", default="127.0.0.1", help="address at which requests are taken")
    parser.add_argument("--gateway-port", type=int, required=True, help="port at which requests are taken")
    parser.add_argument("--poll-interval", type=float, help="seconds, instead of what the control plane asks for")
    parser.add_argument("--telemetry-interval", type=float, default=5.0, help="seconds between two batches")
    parser.add_argument(
        "--hardware", type=HardwareMode, choices=list(HardwareMode), default=HardwareMode.AUTO,
        help="where to look for GPUs; auto: NVML where there is a driver, else none",
    )  # fmt: skip
    parser.add_argument("--simulated-gpus", type=int, choices=range(1, MAX_GPUS + 1), default=8, metavar="N")
    parser.add_argument("--sample-interval", type=_interval, default=1.0, help="seconds between two looks at the GPUs")
    parser.add_argument(
        "--scenario", type=Path, help="JSON file of scripted faults of simulated GPUs, read as it changes"
    )
    return parser


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.01 <= seconds <= 60.0:
        raise argparse.ArgumentTypeError(f"{text} s is not between 0.01 and 60")
    return seconds


def _settings(found: argparse.Namespace) -> Settings:
    return Settings(
        home=found.home.absolute(),
        server=found.server,
        name=found.name,
        zone=found.zone,
        gateway=Listen(found.gateway_host, found.gateway_port),
        join_token_file=found.join_token_file,
        ca_file=found.ca_file,
        poll_interval_s=found.poll_interval,
        telemetry_interval_s=found.telemetry_interval,
        hardware=found.hardware,
        simulated_gpus=found.simulated_gpus,
        sample_interval_s=found.sample_interval,
        scenario=found.scenario,
    )


def _run(settings: Settings, now: Callable[[], float]) -> int:
    home = Home(settings.home)
    home.prepare()
    lock = os.open(home.path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.error("another agent runs in %s; stop it, or give this one a home of its own", home.path)
        return 1
    raise_open_files()
    agent = Agent(settings, now=now)
    me = find(os.getpid())
    if me is not None:
        Records(home).put(AGENT, me)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    log.info("agent of %s, gateway %s", settings.name, settings.gateway.url)
    agent.run()
    log.info("stopped; engines and gateway go on (end them with `python -m node.agent shutdown --home %s`)", home.path)
    return 0


def _tool(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m node.agent {words[0]}")
    parser.add_argument("--home", type=Path, required=True, help="the agent's home folder")
    home = Home(parser.parse_args(words[1:]).home.absolute())
    if words[0] == "status":
        sys.stdout.write(json.dumps(status(home), indent=1) + "\n")
        return 0
    shutdown(home, _say)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    exit_status = main()
    logging.shutdown()
    # not sys.exit: a thread that waits for a distant answer must not hold the process
    sys.stdout.flush()
    os._exit(exit_status)
