"""The node agent: dials out to the control plane, verifies what it is told, and keeps engines and gateway so."""

AGENT_VERSION = "0.1.0"
