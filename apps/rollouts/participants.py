"""Which nodes take part in a rollout, and what each served before it."""

from __future__ import annotations

from collections.abc import Mapping

from apps.fleet.models import DesiredDeployment, Node, Pool
from apps.models.models import Artifact, RegisteredModel
from apps.rollouts.models import Participant, Rollout

Before = Mapping[Node, Artifact | None]  # None: it serves no version of the model


def served_before(model: RegisteredModel, pool: Pool) -> Before:
    """Return what each of the pool's working nodes is to serve of the model as its baseline, by node name."""
    nodes = Node.objects.filter(pool=pool, phase__in=Node.TAKES_WORK).order_by("name")
    rows = DesiredDeployment.objects.filter(node__in=nodes, model=model, role="baseline")
    served = {row.node_id: row.artifact for row in rows.select_related("artifact__version__model")}
    return {node: served.get(node.pk) for node in nodes}


def add_participants(rollout: Rollout, before: Before) -> None:
    """Take nodes in, each with what it goes back to. A node that serves the candidate already needs nothing."""
    Participant.objects.bulk_create(
        (
            Participant(
                rollout=rollout,
                node=node,
                previous=artifact.version if artifact is not None else None,
                previous_artifact=artifact,
            )
            for node, artifact in before.items()
            if artifact is None or artifact.pk != rollout.artifact_id
        ),
        ignore_conflicts=True,
    )


def add_newcomers(rollout: Rollout) -> None:
    """Take in nodes that joined the pool since: a stage begins with all that are there."""
    known = set(Participant.objects.filter(rollout=rollout).values_list("node_id", flat=True))
    before = served_before(rollout.model, rollout.pool)
    add_participants(rollout, {node: artifact for node, artifact in before.items() if node.pk not in known})
