"""`make demo-story`: the whole story on fresh state, every point of it checked through REST, pages and files.

Starts what `make up` starts, on ports of its own, acts as the people would, and ends with one line per point. Its state
lies in var/demo-story and is deleted first; its logs stay for whoever reads a failure.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx2

from aifb.reader import open_artifact
from cli.client import ApiError, Client
from demo.browse import Browser
from demo.looking import HOME, ROOT, Failed, Installation, check, descendants, pss_bytes, tail, until
from demo.story import DIGITS, ENDS, MINILM, MISTAKE, say
from demo.tamper import Attacker, Order

START_TIMEOUT_S = 600.0
CHAPTER_TIMEOUT_S = 900.0
ALERT_TIMEOUT_S = 600.0
MEMORY_LIMIT_BYTES = 6 << 30
HEX_64 = 64


class Replay(Installation):
    """One run of the product and the people around it."""

    first_order: Order  # of node-3

    # -- the points of the story --------------------------------------------------------------------------------------

    def start(self) -> str:
        """1: one command brings everything up, within 6 GiB."""
        shutil.rmtree(HOME, ignore_errors=True)
        HOME.mkdir(parents=True)
        log = (HOME / "up.log").open("wb")
        self.product = subprocess.Popen(
            [sys.executable, "manage.py", "up"], cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT
        )
        until("The control plane's start", START_TIMEOUT_S, self._answers)
        self.secrets = json.loads((HOME / "secrets.json").read_text(encoding="utf-8"))
        self.api = Client(self.origin, self.secrets["ci_token"])
        self.lead = Browser(self.origin, "lead", self.secrets["users"]["lead"])
        self.oncall = Browser(self.origin, "oncall", self.secrets["users"]["oncall"])
        self.requester = Browser(self.origin, "requester", self.secrets["users"]["requester"])
        return f"{self.origin} answers, lead and requester are signed in"

    def enrol(self) -> str:
        """3: three nodes with keys of their own; their tokens work once."""
        nodes = until("Three active nodes", 120, lambda: self._nodes("active"))
        for node in nodes:
            page = self.lead.read(f"/fleet/nodes/{node['name']}/")
            check(node["name"] in page and node["zone"] in page, f"the page of {node['name']} does not show it")
        keys = {path.read_bytes() for path in HOME.glob("nodes/*/identity*/*") if path.is_file()}
        keys |= {path.read_bytes() for path in HOME.glob("nodes/*/identity*") if path.is_file()}
        check(len(keys) >= 3, "the nodes' keys are not files of their own")
        return ", ".join(f"{node['name']} in {node['zone']}" for node in nodes)

    def register(self) -> str:
        """2: real models, packed, signed, verified; four hashes each."""
        first = until("The first versions", CHAPTER_TIMEOUT_S, lambda: self._version(MINILM, 1))
        second = until("The int8 version", CHAPTER_TIMEOUT_S, lambda: self._version(MINILM, 2))
        until("The retrained digits", CHAPTER_TIMEOUT_S, lambda: self._version(DIGITS, 2))
        for part in ("model_hash", "data_hash", "env_hash", "build_hash"):
            check(len(first[part]) == HEX_64, f"{part} of {MINILM} v1 is no SHA-256: {first[part]!r}")
        check(first["model_hash"] != second["model_hash"], "int8 weights have the float32 weights' hash")
        check(first["data_hash"] == second["data_hash"], "the feature pipeline is the same and its hash is not")
        sizes = {number: self._stored(number).stat().st_size for number in (1, 2)}
        check(sizes[2] < 0.3 * sizes[1], f"int8 is not about four times smaller: {sizes}")
        with open_artifact(self._stored(2)) as artifact:
            check(artifact.header.root.hex() == self._digest(MINILM, 2), "the stored file is not what was signed")
        return f"float32 {sizes[1] / 1e6:.1f} MB, int8 {sizes[2] / 1e6:.1f} MB, lineage {first['model_hash'][:12]}…"

    def deliver(self) -> str:
        """4: each node has verified files and runs the digest it was assigned."""
        until("The first version", CHAPTER_TIMEOUT_S, lambda: self._version(MINILM, 1))
        digest = self._digest(MINILM, 1)
        until("v1 on three nodes", CHAPTER_TIMEOUT_S, lambda: len(self._running(MINILM, 1)) == 3)
        copies = list(HOME.glob(f"nodes/*/artifacts/{digest}.aifb"))
        check(len(copies) == 3, f"{len(copies)} of 3 nodes keep the artifact under its digest")
        for path in copies:
            with open_artifact(path, expected_root=bytes.fromhex(digest)):
                pass
        self.first_order = Attacker(HOME).order_of("node-3")  # to be played again, much later
        return f"three verified copies of {digest[:12]}…, three nodes report it running"

    def serve(self) -> str:
        """5: the gateway answers, says which version and lineage, refuses nonsense; requests are rows."""
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a horse", "a shoe"]}]}
        answer = httpx2.post(f"{self._gateway(1)}/v2/models/{MINILM}/infer", json=body, timeout=30.0)
        check(answer.status_code == 200, f"inference failed: HTTP {answer.status_code} {answer.text[:200]}")
        content = answer.json()
        check(content["outputs"][0]["shape"] == [2, 384], f"unexpected output shape {content['outputs'][0]['shape']}")
        lineage = content["parameters"]["lineage"]
        check(len(lineage.split("_")) == 4, f"the answer does not name its lineage: {lineage!r}")
        check(answer.headers["x-farrier-lineage"] == lineage, "header and body disagree about the lineage")
        bad = httpx2.post(f"{self._gateway(1)}/v2/models/{MINILM}/infer", json={"inputs": []}, timeout=30.0)
        check(bad.status_code == 400 and bad.json()["code"], f"nonsense was answered with {bad.status_code}")
        return f"v{content['model_version']} answered, lineage {lineage[:12]}…"

    def watch(self) -> str:
        """9: a host's cooling fails: one alert with its peers as the reason; on-call sees and acknowledges it."""
        gpus = [gpu for number in (1, 2, 3) for gpu in self.api.get(f"nodes/node-{number}")["gpus"]]
        check(len(gpus) == 24 and all(gpu["simulated"] for gpu in gpus), f"not 24 GPUs that say simulated: {gpus}")
        alert = until("The alert of node-2's temperature", ALERT_TIMEOUT_S, lambda: self._alert("firing"))
        check("8 of 8 GPUs" in alert["summary"] and "cooling" in alert["summary"], f"no peers in: {alert['summary']}")
        check(len(alert["members"]) == 8 and alert["simulated"], f"not eight simulated GPUs: {alert}")
        first = re.search(r'href="/alerts/([0-9a-f-]{36})/"', self.oncall.html("/alerts/"))
        check(first is not None and first[1] == alert["id"], f"it is not the first of the inbox: {first}")
        page = f"/alerts/{alert['id']}/"
        text = self.oncall.read(page)
        for words in ("node-2: 8 of 8 GPUs", "expected", "simulated", "airflow"):
            check(words in text, f"the alert's page does not say «{words}»")
        self._band(alert["members"][0]["gpu"])
        self._left_out()
        check("leaves the node out of its evidence" in self.oncall.read(page), "the alert's page names no rollout")
        self.oncall.submit(page, "acknowledge", note="Somebody is on the way to the fans")
        check(self._alert("firing")["acknowledged_by"] == "oncall", "the acknowledgement does not name on-call")
        scraped = httpx2.get(
            f"{self.origin}/metrics", headers={"Authorization": f"Bearer {self.secrets['metrics_token']}"}, timeout=30.0
        )
        check(scraped.status_code == 200 and "farrier_alerts{" in scraped.text, "/metrics does not tell of alerts")
        return str(alert["summary"])

    def _alert(self, state: str) -> dict[str, Any]:
        """Return the one alert of node-2's temperature in a state, or nothing; more than one is a failure."""
        rows: list[dict[str, Any]] = self.api.get("alerts", state=state, rule="gpu-temperature")["results"]
        check(len(rows) < 2, f"not one alert but {len(rows)}: {[row['summary'] for row in rows]}")
        check(all(row["entity_name"] == "node-2" for row in rows), f"another node's temperature is {state}: {rows}")
        return rows[0] if rows else {}

    def _band(self, gpu: str) -> None:
        """The chart's data: what was seen lies above what was expected."""
        query = f"/series.json?metric=temperature_c&gpu={gpu}&range=1h&band=1"
        told = json.loads(self.oncall.html(query))
        check(told["series"][0]["simulated"] and told["band"] is not None, "no band, or it does not say simulated")
        seen = [value for value in told["series"][0]["mean"] if value is not None]
        high = [value for value in told["band"]["high"] if value is not None]
        check(bool(high) and max(seen) > max(high), f"seen {max(seen)} °C does not lie above the expected band")

    def _left_out(self) -> None:
        """The evidence page says so from the rollout's next tick on."""

        def said() -> bool:
            row = self._newest(MINILM, 2)
            page = self.lead.read(f"/rollouts/{row['id']}/") if row else ""
            return "left out: GPU" in page or "left out: It reports Gpu" in page

        until("The evidence page's leaving node-2 out", 60, said)

    def recover(self) -> str:
        """9 again: cooling returns, the alert resolves by itself, the GPUs are well."""
        until("The alert's end", ALERT_TIMEOUT_S, lambda: not self._alert("firing"))
        alert = self._alert("resolved")
        check(bool(alert) and bool(alert["resolved_at"]), "the alert is neither firing nor resolved")
        until("eight GPUs well", 120, lambda: {g["health"] for g in self.api.get("nodes/node-2")["gpus"]} == {"ok"})
        return f"resolved after {alert['firing_at']} … {alert['resolved_at']}"

    def roll_out(self) -> str:
        """6: shadow, canary, analysis, a pause; not the requester, then the lead; full; champion moves."""
        said = []
        for model in (MINILM, DIGITS):
            rollout = until(f"{model} v2 at its approval", CHAPTER_TIMEOUT_S, partial(self._waiting, model))
            said.append(self._approve(rollout))
        return "; ".join(said)

    def _approve(self, rollout: dict[str, Any]) -> str:
        page = f"/rollouts/{rollout['id']}/"
        text = self.lead.read(page)
        for words in ("Waiting for approval", "similarity", "node-1", "node-2", "node-3"):
            check(words.lower() in text.lower(), f"the evidence page does not say «{words}»")
        evidence = self.api.get(f"rollouts/{rollout['id']}/evidence")["results"]
        similar = [row for row in evidence if row["metric"] == "similarity" and row["verdict"] == "successful"]
        check(bool(similar), "no stage found the outputs similar")
        check(similar[0]["low"] >= similar[0]["margin"], f"similarity passed with a lower bound of {similar[0]['low']}")
        self._cannot_approve_own(page, rollout)
        reason = "Similarity and latency are fine on all three nodes"
        self.lead.submit(page, "approve", reason=reason)
        until(f"{rollout['model']} v2 on every node", CHAPTER_TIMEOUT_S, lambda: self._phase(rollout) == "completed")
        check(len(self._running(rollout["model"], 2)) == 3, "completed without every node running it")
        aliases = {row["name"]: row["version"] for row in self.api.get(f"models/{rollout['model']}/aliases")["results"]}
        check(aliases.get("champion") == 2, f"champion did not move: {aliases}")
        check(reason in self.lead.read(page), "the approval's reason is not on the page")
        return f"{rollout['model']} v2 approved by lead, similarity ≥ {similar[0]['low']:.4f}, champion moved"

    def _cannot_approve_own(self, page: str, rollout: dict[str, Any]) -> None:
        """Neither the requester's page nor the requester's token approves; the page says why."""
        page_text = self.requester.read(page)
        check(
            "another person must decide" in page_text or "deciding takes" in page_text, "the page does not say why not"
        )
        answer = self.requester.submit(page, "approve", reason="My own work is fine")
        check(answer.status_code == 403, f"the requester's approval was answered with {answer.status_code}, not 403")
        check(self._phase(rollout) == "paused", "the requester approved their own rollout")
        try:
            body = {"reason": "CI approves", "expected_revision": rollout["revision"]}
            self.api.post(f"rollouts/{rollout['id']}:approve", body)
        except ApiError as refused:
            check(refused.status == 403, f"CI's approval was refused with {refused.status}, not 403")
        else:
            raise Failed("the requester's token approved the requester's rollout")

    def roll_back(self) -> str:
        """7: the mistake is caught by measuring; nodes stay on v2; a hold stands until a person lifts it."""
        rollout = until("v3's rollback", CHAPTER_TIMEOUT_S, lambda: self._ended(MINILM, 3))
        check(rollout["phase"] == "rolled_back", f"v3 ended {rollout['phase']}")
        check("similarity" in rollout["decision"].lower(), f"the decision names no evidence: {rollout['decision']}")
        page = self.lead.read(f"/rollouts/{rollout['id']}/")
        check(rollout["decision"][:40] in page, "the page does not show the sentence that decided")
        until(
            "v2 alone on every node", 120, lambda: len(self._running(MINILM, 2)) == 3 and not self._running(MINILM, 3)
        )
        self._held()
        return str(rollout["decision"])

    def _held(self) -> None:
        again = {
            "model": MINILM,
            "version": 3,
            "strategy": MISTAKE.strategy,
            "pool": "default",
            "reason": "CI tries again",
        }
        try:
            self.api.post("rollouts", again)
        except ApiError as refused:
            check(refused.status == 409, f"the held digest was refused with {refused.status}, not 409")
        else:
            raise Failed("the held digest could be rolled out again")
        check(self._lift_hold(MINILM, 3, "To look at it once more on a test pool"), "there was no hold to lift")

    def _lift_hold(self, model: str, version: int, reason: str) -> bool:
        """Lift the holds on a version as the lead; tells whether there were any."""

        def found() -> list[dict[str, Any]]:
            rows = self.api.get("holds", active="true")["results"]
            return [row for row in rows if (row["model"], row["version"]) == (model, version)]

        holds = found()
        for hold in holds:
            self.lead.submit("/holds/", f"{hold['id']}/lift", reason=reason)
        check(not found(), "the lead lifted the hold and it still stands")
        return bool(holds)

    def ci(self) -> str:
        """8: exit codes, sentences, OpenAPI."""
        bad = self._ended(MINILM, 3)
        ended = self._farrier("rollout", "wait", str(bad["number"]))
        check(ended.returncode == 3, f"waiting for a rolled-back rollout exits {ended.returncode}, not 3")
        check("similarity" in ended.stderr.lower(), f"stderr does not say why: {ended.stderr!r}")
        good = self._ended(MINILM, 2)
        check(self._farrier("rollout", "wait", str(good["number"])).returncode == 0, "a completed rollout exits not 0")
        versions = self._farrier("versions", MINILM)
        check(versions.returncode == 0 and "champion" in versions.stdout, f"versions: {versions.stdout}")
        nodes = self._farrier("nodes")
        check(all(f"node-{number}" in nodes.stdout for number in (1, 2, 3)), f"nodes: {nodes.stdout}")
        schema = httpx2.get(f"{self.origin}/api/schema", timeout=60.0)
        check(schema.status_code == 200 and "/api/v1/rollouts" in schema.text, "the OpenAPI schema lacks rollouts")
        refused = self._farrier("versions", MINILM, token="wrong")  # noqa: S106 not a secret
        check(refused.returncode == 1, f"a wrong token exits {refused.returncode}, not 1")
        return "exit codes 0, 1 and 3, reasons on stderr, OpenAPI served"

    def refuse(self) -> str:
        """4 again: what was tampered with is refused with its reason on the node's page, and v2 serves on."""
        attacker = Attacker(HOME)
        seen = self._refuse_orders(attacker)
        third = self._push_third()
        with attacker.flipped_bit(third), self._tried():
            seen |= self._refused("node-1", "chunk_mismatch")
        with attacker.truncated(third), self._tried():
            seen |= self._refused("node-2", "truncated")
        with self._tried():
            until("v3 on trial on node-3", 120, lambda: "node-3" in self._running(DIGITS, 3))
            attacker.swap("node-3", third, self._digest(DIGITS, 1))
            attacker.kill_engine("node-3", third)
            seen |= self._refused("node-3", "root_mismatch")
        return f"{', '.join(sorted(seen))}: each on its node's page, v2 answered all the while"

    def _refuse_orders(self, attacker: Attacker) -> set[str]:
        """A foreign key, an expired and an older assignment; nobody but the node stands in their way."""
        now = attacker.order_of("node-3")
        check(self.first_order.sequence < now.sequence, "node-3's first assignment was also its last")
        seen: set[str] = set()
        for code, order in (
            ("unknown_key", attacker.by_a_stranger(now)),
            ("expired", attacker.expired(now)),
            ("sequence_too_low", self.first_order),
        ):
            seen |= self._refused("node-3", code, partial(attacker.send, "node-3", order))
        attacker.send("node-3", now)
        return seen

    def _push_third(self) -> str:
        key = HOME / "keys" / "release" / "release.pem"
        pushed = self._farrier("push", DIGITS, "--recipe", "demo.recipes:digits_once_more", "--key", str(key))
        check(pushed.returncode == 0, f"v3 of {DIGITS} could not be pushed: {pushed.stderr}")
        return self._digest(DIGITS, 3)

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Try to roll v3 of the digits out meanwhile; it ends rolled back, or aborted by the lead."""
        wanted = {"model": DIGITS, "version": 3, "strategy": "digits-demo", "pool": "default", "reason": "A test"}
        rollout = self.api.post("rollouts", wanted)
        yield
        if self._phase(rollout) not in ENDS:
            self.lead.submit(f"/rollouts/{rollout['id']}/", "abort", reason="Its bytes were tampered with")
        until("The end of what was tampered with", 120, lambda: self._phase(rollout) in ENDS)
        check(self._phase(rollout) != "completed", f"{DIGITS} v3 completed though it was tampered with")
        until("v2 alone on every node", 120, lambda: not self._running(DIGITS, 3))
        self._lift_hold(DIGITS, 3, "The artifact is sound again")

    def _refused(self, node: str, code: str, act: Callable[[], None] = lambda: None) -> set[str]:
        """Do `act` until the node's page shows the refusal; v2 must answer there before and after."""

        def look() -> bool:
            act()
            check(self._version_of_answer(node) == "2", f"{node} does not answer with v2 any more")
            return code in self.lead.read(f"/fleet/nodes/{node}/")

        until(f"{node}'s refusal {code}", 120, look)
        return {code}

    def _version_of_answer(self, node: str) -> str:
        body = {"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}]}
        url = f"{self._gateway(int(node[-1]))}/v2/models/{DIGITS}/infer"
        return str(httpx2.post(url, json=body, timeout=30.0).json()["model_version"])

    def memory(self) -> str:
        """1 again: what it all takes, at the end of the story."""
        status = subprocess.run(
            [sys.executable, "manage.py", "status"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        used = pss_bytes(descendants(HOME))
        check(used < MEMORY_LIMIT_BYTES, f"it takes {used / 2**30:.2f} GiB\n{status.stdout}")
        check(status.returncode == 0, f"status exits {status.returncode}: {status.stdout}{status.stderr}")
        return f"{used / 2**30:.2f} GiB proportional set size over all processes"

    def stop(self) -> None:
        """Stop what was started, as Ctrl-C would."""
        if self.product is not None and self.product.poll() is None:
            self.product.send_signal(signal.SIGINT)
            try:
                self.product.wait(timeout=90)
            except subprocess.TimeoutExpired:
                self.product.kill()
                raise Failed("Ctrl-C did not stop it within 90 s") from None


def main() -> int:
    """Run every point in the story's order; 0 when all hold."""
    replay = Replay()
    points = (
        ("1 Start", replay.start),
        ("3 Enrol", replay.enrol),
        ("4 Deliver", replay.deliver),
        ("5 Serve", replay.serve),
        ("2 Register", replay.register),
        ("9 Watch", replay.watch),
        ("6 Roll out", replay.roll_out),
        ("7 Roll back", replay.roll_back),
        ("8 CI", replay.ci),
        ("4 Refuse", replay.refuse),
        ("9 Recover", replay.recover),
        ("1 Memory", replay.memory),
    )
    began = time.monotonic()
    try:
        for name, point in points:
            say(f"✓ {name}: {point()}  [{time.monotonic() - began:.0f} s]")
    except (Failed, AssertionError, ApiError, KeyError) as wrong:
        say(f"✗ {name}: {wrong!r}\n--- the end of {HOME / 'up.log'}:\n{tail(HOME / 'up.log')}")
        return 1
    finally:
        replay.stop()
    say(f"demo-story: all points hold, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
