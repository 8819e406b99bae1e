"""What can be wrong with the comparator's configuration."""

from __future__ import annotations


class ConfigError(Exception):
    """The configuration can't be used; the last good one stays in force."""

    code = "bad_config"
