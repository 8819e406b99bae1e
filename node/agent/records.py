"""Plain values of the agent to JSON and back, for its state files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aifb.trust import Deployment
from node.agent.files import read_json, write_json
from node.agent.planner import Good, Key, Mirror, ModelRoute, Share

Json = dict[str, Any]


def route_to_json(route: ModelRoute) -> Json:
    """A route as it stands in the state file."""
    return asdict(route)


def route_from_json(value: Json) -> ModelRoute:
    """Read what `route_to_json` made; raises KeyError or TypeError when it is something else."""
    mirror = value["mirror"]
    return ModelRoute(
        model=value["model"],
        shares=tuple(Share(Key(*share["key"]), share["weight"]) for share in value["shares"]),
        mirror=None
        if mirror is None
        else Mirror(
            percent=mirror["percent"],
            baseline=Key(*mirror["baseline"]),
            candidate=Key(*mirror["candidate"]),
            deployment=Deployment(**mirror["deployment"]),
        ),
    )


class GoodStore:
    """The last baselines that served, by model: what a rollback or a failed start falls back to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        stored: Mapping[str, Json] = read_json(path) or {}
        self.by_model: dict[str, Good] = {model: _good_from_json(value) for model, value in stored.items()}

    def remember(self, good: Good) -> None:
        """Store durably: from now on this baseline is the one to come back to."""
        self.by_model[good.current.model] = good
        write_json(self._path, {model: asdict(kept) for model, kept in self.by_model.items()})


def _good_from_json(value: Json) -> Good:
    previous = value["previous"]
    return Good(Deployment(**value["current"]), Deployment(**previous) if previous else None)
