"""Settings for contract.py: one connection, no statement prepared on the server, no TLS."""

from controlplane.settings import *  # noqa: F403
from controlplane.settings import DATABASES

DATABASES["default"] |= {"OPTIONS": {"sslmode": "disable", "prepare_threshold": None}, "CONN_MAX_AGE": None}
