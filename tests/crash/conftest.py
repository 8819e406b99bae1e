"""One installation for all crash tests, an account of what was done to it, and its logs when a test fails."""

import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.crash.rollout import roll_out_first
from tests.crash.site import Site

REPORT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def site(pytestconfig: pytest.Config) -> Iterator[Site]:
    """The product with two nodes that serve the first version of a model."""
    folder = Path(tempfile.mkdtemp(prefix="farrier-crash-"))
    folder.chmod(0o755)  # PostgreSQL may have to run as nobody
    made = Site(folder)
    try:
        try:
            made.start()
            roll_out_first(made)
        except (AssertionError, OSError) as failed:
            raise AssertionError(f"{failed}\n{made.tails()}") from failed
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last lines of all processes' logs below a failure."""
    report = yield
    site = getattr(item, "funcargs", {}).get("site")
    if report.when == "call" and report.failed and site is not None:
        report.sections.append(("logs of the installation", site.tails()))
    return report


@pytest.fixture
def account(pytestconfig: pytest.Config) -> list[str]:
    """Lines for the end of the test run: what was killed, and what it cost."""
    return pytestconfig.stash.setdefault(REPORT, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the account."""
    lines = config.stash.get(REPORT, [])
    if lines:
        terminalreporter.section("crash tests")
        for line in lines:
            terminalreporter.write_line(line)
