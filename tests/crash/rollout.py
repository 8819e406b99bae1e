"""Rollouts as CI and the ML lead drive them, patient with a control plane that is being killed."""

from typing import Any

from cli.client import ApiError, Unreachable
from tests.crash.site import NODES, Site
from tests.crash.versions import publish
from tests.crash.waiting import until

MODEL = "ballast"
# The fewest samples that can prove these margins when five judgements share the level (the API refuses fewer).
_METRICS = [{"name": "similarity", "margin": 0.9}, {"name": "errors", "margin": 0.05}]
_GATE = {"min_samples": 100, "window_s": 30, "max_duration_s": 600, "ready_s": 240, "metrics": _METRICS}
STAGE_TIMEOUT_S = 240.0
ENDS = ("completed", "rolled_back", "aborted", "superseded")


def stages(bake_s: float) -> list[dict[str, Any]]:
    """A shadow, a canary, an approval, then everywhere. Each gate stays open for `bake_s` at least."""
    return [
        {"kind": "shadow", "percent": 50, "bake_s": bake_s, **_GATE},
        {"kind": "canary", "weight": 50, "mirror_percent": 50, "bake_s": bake_s, **_GATE},
        {"kind": "approval"},
        {"kind": "full"},
    ]


class Rollout:
    """One rollout, seen over REST."""

    def __init__(self, site: Site, version: int, plan: list[dict[str, Any]] | None, reason: str) -> None:
        self._site = site
        self.version = version
        body: dict[str, Any] = {"model": MODEL, "version": version, "reason": reason}
        self._created = site.api.post("rollouts", body | ({"strategy": "first"} if plan is None else {"stages": plan}))

    def row(self) -> dict[str, Any]:
        """The rollout now. While the control plane can't answer, as it was asked for."""
        try:
            row: dict[str, Any] = self._site.api.get(f"rollouts/{self._created['id']}")
        except (ApiError, Unreachable) as away:
            if getattr(away, "status", 503) < 500:  # an answer, and a wrong one
                raise
            self._site.refusals[f"{getattr(away, 'status', 'none')} {getattr(away, 'code', '')}".strip()] += 1
            return dict(self._created)
        return row

    def until_stage(self, index: int, *, is_ready: bool = False) -> None:
        """Wait until it has come to a stage (and its nodes serve what the stage needs)."""

        def there() -> bool:
            row = self.row()
            assert row["phase"] not in ENDS or row["stage_index"] >= index, (
                f"it ended {row['phase']}: {row['decision']}"
            )
            return row["stage_index"] > index or (
                row["stage_index"] == index
                and row["phase"] != "pending"
                and (not is_ready or row["stages"][index]["ready_at"] is not None)
            )

        until(f"{MODEL} v{self.version} comes to stage {index + 1}", there, STAGE_TIMEOUT_S)

    def until_phase(self, *phases: str) -> dict[str, Any]:
        """Wait for a phase, not beyond an end; returns the rollout then."""

        def there() -> dict[str, Any] | None:
            row = self.row()
            assert row["phase"] in phases or row["phase"] not in ENDS, f"it ended {row['phase']}: {row['decision']}"
            return row if row["phase"] in phases else None

        row = until(f"{MODEL} v{self.version} becomes {' or '.join(phases)}", there, STAGE_TIMEOUT_S)
        assert row is not None
        return row

    def approve(self) -> None:
        """Approve as the lead, in the console."""
        page = f"/rollouts/{self._created['id']}/"
        revision = str(self.row()["revision"])
        answer = self._site.lead.submit(page, "approve", reason="The evidence is good", expected_revision=revision)
        assert answer.status_code == 200, answer.text[:300]

    def serving(self, version: int) -> bool:
        """Whether this version alone serves the model on every node."""
        rows = list(self._site.api.all("nodes"))
        found = [
            {(d["version"], d["state"], d["weight_in_force"]) for d in row["deployments"] if d["model"] == MODEL}
            for row in rows
        ]
        return found == [{(version, "running", 100)}] * NODES

    def serving_versions(self) -> set[int]:
        """The versions that some node sends requests to."""
        rows = [d for row in self._site.api.all("nodes") for d in row["deployments"] if d["model"] == MODEL]
        return {d["version"] for d in rows if d["state"] == "running" and d["weight_in_force"]}


def roll_out_first(site: Site) -> None:
    """Publish the model's first version and bring it onto all nodes."""
    version = publish(site.api, site.release_key, MODEL, is_good=True)
    rollout = Rollout(site, version, None, "The first version")
    rollout.until_phase("completed")
    until("the first version serves everywhere", lambda: rollout.serving(version), STAGE_TIMEOUT_S)


def champion(site: Site) -> int:
    """The version that serves now."""
    rows = site.api.get(f"models/{MODEL}/aliases")["results"]
    return int(next(row["version"] for row in rows if row["name"] == "champion"))
