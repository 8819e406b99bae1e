"""The format knows nothing of the control plane, so its tests go without the control plane's fixtures."""

import pytest


@pytest.fixture(autouse=True)
def home() -> None:
    """No FARRIER_HOME is needed here."""


@pytest.fixture(autouse=True)
def _quick_passwords() -> None:
    """No user is needed here."""
