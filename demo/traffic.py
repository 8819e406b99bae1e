"""Real requests to the nodes' gateways: sentences of licence texts, and handwritten digits whose labels come back.

`python -m demo.traffic --gateway http://127.0.0.1:8711 --gateway … --server … --token … --rate 50`
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import itertools
import os
import random
import re
import signal
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

TEXTS = Path(__file__).parent / "texts"
USERS = 400
DIGITS_EVERY = 3  # one request in so many is a digit
LONGEST = 120  # characters: three engines share the few cores of the machine that shows all this
FEEDBACK_BATCH = 50
REPORT_S = 15.0
PR_SET_PDEATHSIG = 1
# Most callers send one sentence, some a handful: batch classes must not be compared with one another.
ITEMS = (1, 1, 1, 1, 1, 1, 1, 1, 2, 4)


def sentences() -> list[str]:
    """Return the shorter sentences of the bundled texts, in a fixed order."""
    found: set[str] = set()
    for path in sorted(TEXTS.glob("*.txt")):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        parts = (part.strip() for part in re.split(r"(?<=[.;:]) ", text))
        found |= {part for part in parts if 20 < len(part) <= LONGEST and _is_prose(part)}
    return sorted(found)


def _is_prose(text: str) -> bool:
    """Tell a sentence from a ruled line or a table's edge."""
    return sum(char.isalpha() or char == " " for char in text) >= 0.85 * len(text)


@dataclass
class Tally:
    """What happened since the last report."""

    sent: int = 0
    failed: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    last_error: str = ""

    def line(self, seconds: float) -> str:
        """Return one sentence for the log."""
        if not self.latencies_ms:
            return f"traffic: no answer in {seconds:.0f} s ({self.last_error or 'nothing sent'})"
        ranked = sorted(self.latencies_ms)
        p99 = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
        text = (
            f"traffic: {self.sent / seconds:.1f} req/s, {self.failed} failed, "
            f"median {statistics.median(ranked):.1f} ms, p99 {p99:.1f} ms"
        )
        return f"{text}; last error: {self.last_error}" if self.failed else text


class Traffic:
    """Callers that wait for their answers: at most `rate` requests a second, at most `open_limit` of them open at once.

    So a slow machine gets fewer requests instead of a growing queue.
    """

    def __init__(
        self, gateways: list[str], rate: float, open_limit: int, *, server: str, token: str, seed: int = 7
    ) -> None:
        self._gateways = itertools.cycle(gateways)
        self._gap_s = 1.0 / rate
        self._open_limit = open_limit
        self._server = server.rstrip("/")
        self._token = token
        self._random = random.Random(seed)  # noqa: S311 a reproducible mix, not a secret
        self._sentences = sentences()
        self._digits = _digit_samples()
        self._labels: deque[dict[str, str]] = deque(maxlen=10_000)
        self._open: set[asyncio.Task[None]] = set()
        self.tally = Tally()
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Send until `stop` is set, then wait for what is still open."""
        limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64)
        async with httpx2.AsyncClient(timeout=10.0, limits=limits) as http:
            helpers = [asyncio.create_task(self._report()), asyncio.create_task(self._feed_back(http))]
            due = time.monotonic()
            for number in itertools.count():
                if self.stop.is_set():
                    break
                if len(self._open) >= self._open_limit:
                    await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
                self._start(http, number)
                due = max(due + self._gap_s * self._random.uniform(0.5, 1.5), time.monotonic())
                await asyncio.sleep(due - time.monotonic())
            await asyncio.gather(*self._open, return_exceptions=True)
            for helper in helpers:
                helper.cancel()

    def _start(self, http: httpx2.AsyncClient, number: int) -> None:
        job = self._digit(http) if number % DIGITS_EVERY == 0 else self._sentence(http)
        task = asyncio.create_task(job)
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _sentence(self, http: httpx2.AsyncClient) -> None:
        texts = self._random.choices(self._sentences, k=self._random.choice(ITEMS))
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
        await self._send(http, "minilm-embedder", body)

    async def _digit(self, http: httpx2.AsyncClient) -> None:
        pixels, label = self._random.choice(self._digits)
        body = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": pixels}]}
        answer = await self._send(http, "digit-classifier", body)
        if answer is not None:
            self._labels.append({"request_id": answer["id"], "label": label})

    async def _send(self, http: httpx2.AsyncClient, model: str, body: dict[str, Any]) -> dict[str, Any] | None:
        user = f"user-{self._random.randrange(USERS)}"
        headers = {"x-user-id": user, "x-session-id": f"{user}-{int(time.time() // 1800)}", "x-model-id": model}
        began = time.monotonic()
        self.tally.sent += 1
        try:
            answer = await http.post(f"{next(self._gateways)}/v2/models/{model}/infer", json=body, headers=headers)
        except httpx2.TransportError as lost:
            self._failed(f"{model}: {type(lost).__name__}")
            return None
        if answer.status_code != 200:
            self._failed(f"{model}: HTTP {answer.status_code} {answer.text[:120]}")
            return None
        self.tally.latencies_ms.append((time.monotonic() - began) * 1e3)
        return dict(answer.json())

    def _failed(self, error: str) -> None:
        self.tally.failed += 1
        self.tally.last_error = error

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            print(self.tally.line(REPORT_S), flush=True)  # noqa: T201 this program's log is its output
            self.tally = Tally()

    async def _feed_back(self, http: httpx2.AsyncClient) -> None:
        """Send the true labels home, as the callers of a real service learn them later."""
        while True:
            await asyncio.sleep(2.0)
            batch = [self._labels.popleft() for _ in range(min(FEEDBACK_BATCH, len(self._labels)))]
            if not batch:
                continue
            try:
                answer = await http.post(
                    f"{self._server}/api/v1/feedback", json=batch, headers={"Authorization": f"Token {self._token}"}
                )
                lost = "" if answer.is_success else f"HTTP {answer.status_code} {answer.text[:120]}"
            except httpx2.TransportError as away:
                lost = type(away).__name__
            if lost:
                self._labels.extendleft(reversed(batch))
                self.tally.last_error = f"feedback: {lost}"


def _digit_samples() -> list[tuple[list[float], str]]:
    """Return (64 pixels, label) of the digits that were held out of training."""
    from aifb.importers.digit_images import held_out

    pixels, labels = held_out()
    return [([float(value) for value in row], str(int(label))) for row, label in zip(pixels, labels, strict=True)]


def _end_with_parent() -> None:
    """Have the kernel end this program when the story that started it is killed: nobody would stop it else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


async def _main(options: argparse.Namespace) -> None:
    traffic = Traffic(options.gateway, options.rate, options.open, server=options.server, token=options.token)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, traffic.stop.set)
    await traffic.run()


def main() -> int:
    """Parse the options and drive traffic until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", action="append", required=True, help="Origin of a node's gateway; repeatable.")
    parser.add_argument("--server", required=True, help="Origin of the control plane, for feedback.")
    parser.add_argument("--token", default=os.environ.get("FARRIER_TOKEN", ""), help="API token with feedback:write.")
    parser.add_argument("--rate", type=float, default=50.0, help="Requests a second over all gateways, at most.")
    parser.add_argument("--open", type=int, default=4, help="Requests that wait for their answer at once, at most.")
    parser.add_argument("--end-with-parent", action="store_true", help="End when the starting process does.")
    options = parser.parse_args()
    if options.end_with_parent:
        _end_with_parent()
    asyncio.run(_main(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
