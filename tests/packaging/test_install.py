"""The installer behind `make venv`, on small wheels that the test makes: hashes, repetition, the CPU-or-GPU choice."""

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


def make_wheel(folder: Path, name: str, version: str) -> str:
    """Write an empty but valid wheel; return its lock entry."""
    stem = f"{name}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{f},sha256={_record_hash(text)},{len(text)}" for f, text in files.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{stem}.dist-info/RECORD", "\n".join([*rows, f"{stem}.dist-info/RECORD,,"]) + "\n")
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass
class Checkout:
    """A copy of the installer beside small locks, and a virtual environment to fill."""

    folder: Path
    wheels: Path

    @property
    def locks(self) -> Path:
        return self.folder / "requirements"

    def install(self, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run the installer as make does; pip sees the test's wheels and nothing else."""
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": "/dev/null",
            **environment,
        }
        command = [str(self.folder / "venv/bin/python"), str(self.locks / "install.py")]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def installed(self) -> dict[str, str]:
        """Package → version in the environment."""
        found = (self.folder / "venv/lib").glob("python3*/site-packages/*.dist-info")
        return {path.name.split("-")[0]: path.name.removesuffix(".dist-info").split("-")[1] for path in found}


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with pip alone. Making one takes seconds; a copy of it works as well."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def checkout(tmp_path: Path, empty_environment: Path) -> Checkout:
    made = Checkout(tmp_path, tmp_path / "wheels")
    made.wheels.mkdir()
    made.locks.mkdir()
    shutil.copy(REQUIREMENTS / "install.py", made.locks)
    platform = make_wheel(made.wheels, "platform", "1.0")
    (made.locks / "cpu.lock").write_text(platform + make_wheel(made.wheels, "torch", "2.13.0+cpu"))
    (made.locks / "gpu.lock").write_text(platform + make_wheel(made.wheels, "torch", "2.13.0"))
    (made.locks / "dev.lock").write_text(make_wheel(made.wheels, "tool", "3.0"))
    (made.locks / "weights.lock").write_text(make_wheel(made.wheels, "weights", "0.1"))
    shutil.copytree(empty_environment, tmp_path / "venv", symlinks=True)
    return made


def test_installs_once_and_again_when_a_lock_changes(checkout: Checkout) -> None:
    first = checkout.install()
    assert first.returncode == 0, first.stdout + first.stderr
    assert {
        "platform": "1.0",
        "torch": "2.13.0+cpu",
        "tool": "3.0",
        "weights": "0.1",
    }.items() <= checkout.installed().items()
    assert "Installing 3 pinned packages (cpu)" in first.stdout

    assert checkout.install().stdout == ""

    (checkout.locks / "dev.lock").write_text(make_wheel(checkout.wheels, "tool", "4.0"))
    assert "Installing 3 pinned packages (cpu)" in checkout.install().stdout
    assert checkout.installed()["tool"] == "4.0"


def test_without_the_cpu_build_it_says_where_one_comes_from_and_takes_the_other(checkout: Checkout) -> None:
    next(checkout.wheels.glob("torch-2.13.0+cpu*")).unlink()
    done = checkout.install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PyTorch's own wheel index for CPUs" in done.stdout
    assert "PIP_EXTRA_INDEX_URL" in done.stdout
    assert checkout.installed()["torch"] == "2.13.0"


def test_changed_file_is_refused(checkout: Checkout) -> None:
    make_wheel(checkout.wheels, "platform", "1.0")
    with zipfile.ZipFile(next(checkout.wheels.glob("platform-*")), "a") as archive:
        archive.writestr("evil.py", "")
    done = checkout.install()
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stdout
    assert "pip could not install platform" in done.stderr
    assert "platform" not in checkout.installed()


def test_unknown_variant_is_refused(checkout: Checkout) -> None:
    done = checkout.install(FARRIER_TORCH="tpu")
    assert done.returncode == 1
    assert done.stderr == "FARRIER_TORCH is «tpu»; it may be cpu or gpu.\n"


def test_refuses_to_fill_the_system_python() -> None:
    system = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run([system, str(REQUIREMENTS / "install.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "use `make venv`" in done.stderr


def test_no_python_that_fits_is_a_sentence(tmp_path: Path) -> None:
    script = REQUIREMENTS / "find-python"
    command = ["bash", str(script), str(tmp_path / "venv")]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Farrier needs Python 3.11, 3.12 or 3.13")
    assert "none was found as /bin/false" in done.stderr
    assert not (tmp_path / "venv").exists()
