"""What a person reads when everything runs."""

from controlplane.supervisor.credentials import Secrets
from controlplane.supervisor.processes import SIMULATED, Site

ROLES = {
    "requester": "registers models and starts rollouts",
    "lead": "approves or rejects a canary",
    "oncall": "reads alerts, pauses and aborts",
    "admin": "everything, and the members of the team",
}


def banner(site: Site, secrets: Secrets, took_s: float) -> str:
    """Address, users with passwords, what to look at first."""
    users = "\n".join(f"    {name:<10} {secrets.users[name]}   {does}" for name, does in ROLES.items())
    gateways = ", ".join(str(site.gateway_port_base + n) for n in range(1, site.nodes + 1))
    gpus = "simulated GPUs; two minutes from now a fan fails" if site.hardware == SIMULATED else "GPUs"
    return f"""
  Farrier runs after {took_s:.0f} s:  {site.origin}

{users}

  Look first at
    {site.origin}/fleet/     the nodes as they enrol, fetch, verify and serve
    {site.origin}/rollouts/  sign in as lead: a canary will wait there for your approval
    {site.origin}/alerts/    sign in as oncall: {gpus}
    {site.origin}/audit/     who did what
  Prometheus scrapes {site.origin}/metrics with the bearer token `metrics_token` of {site.layout.secrets}.
  Nodes serve models on 127.0.0.1, ports {gateways}.
  Ctrl-C or `make down` stops everything and keeps the data; `make status` shows it; `make reset` forgets it.
"""
