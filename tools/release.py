"""Checks a release as far as the upload: what the files say, what is built from them, and what installs from that.

    python -m tools.release [--python /path/to/python3.12 ...] [--oldest]

Builds the wheel and the sdist in dist/, checks both, installs the wheel into a fresh environment of each Python from 3.10 to 3.13 that is
found, where ``gnnkit doctor`` and a loader run, and has the unpacked sdist pass tests of packaging and of batches. The sdist has to hold
everything that the documentation was made from, which `make release` has done before.
Prints the size of an installation, and the command that uploads.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import yaml

from tools.build_docs import sources

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Environments are made side by side by pip alone; a slow index is given this long.
INSTALL_TIMEOUT_S = 1200.0
USE = """
import gnnkit
with gnnkit.GraphLoader.from_source(gnnkit.datasets.products_like(0.001), num_neighbors=[3, 2], batch_size=64, progress=False) as loader:
    print(f"gnnkit {gnnkit.__version__}: {sum(batch.batch_size for batch in loader)} nodes in {len(loader)} batches")
"""
WEIGHT = """
import sysconfig
from importlib import metadata
from pathlib import Path
files = [path for path in Path(sysconfig.get_path("purelib")).rglob("*") if path.is_file() and path.suffix != ".pyc"]
print(f"{sum(path.stat().st_size for path in files) / 1e9:.1f} GB in {len(list(metadata.distributions()))} packages")
"""


def run(*command: str | Path, cwd: Path = ROOT, allowed: tuple[int, ...] = (0,)) -> str:
    """Runs a command and returns what it prints; ends the program with that where it fails.

    ``GNNKIT_REQUIRE_ALL`` of the caller is of its own checkout: an unpacked sdist has no other environments, so tests of these are skipped.
    Modules are compiled once, by who imports them first.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("GNNKIT_REQUIRE_ALL", "PYTHONDONTWRITEBYTECODE")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    if done.returncode not in allowed:
        sys.exit(f"{' '.join(map(str, command))} has failed with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout.strip()


def version() -> str:
    """The version that the package says of itself."""
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "gnnkit/version.py").read_text())
    assert found is not None
    return found[1]


def contradictions(wanted: str) -> list[str]:
    """Files that say something else than that this version is released, a line each."""
    found = []
    heading = re.search(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or heading[1] != wanted or heading[2] is None:
        found.append(f"CHANGELOG.md begins with {heading and heading[0]!r}, not with '## [{wanted}] - <date>'")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    if str(citation["version"]) != wanted:
        found.append(f"CITATION.cff is of version {citation['version']}, not {wanted}")
    if heading is not None and heading[2] is not None and citation["date-released"] != date.fromisoformat(heading[2]):
        found.append(f"CITATION.cff was released on {citation['date-released']}, CHANGELOG.md says {heading[2]}")
    return found


def build() -> tuple[Path, Path]:
    """Builds and checks both distributions; the wheel and the sdist."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", ".")
    (wheel,), (sdist,) = ROOT.glob("dist/*.whl"), ROOT.glob("dist/*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        said = message_from_string(archive.read(name).decode())["Version"]
    if said != version():
        sys.exit(f"{wheel.name} says that it is version {said}, not {version()}")
    with tarfile.open(sdist) as files:
        lacking = {f"{sdist.name.removesuffix('.tar.gz')}/{path}" for path in sources(ROOT)} - {*files.getnames()}
    if lacking:
        sys.exit(f"{sdist.name} lacks of the documentation: {', '.join(sorted(lacking))}")
    return wheel, sdist


def interpreters(named: list[str]) -> dict[str, str]:
    """``{version: path}`` of those that are named, or of each version that is found."""
    places = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")) if not named else []
    candidates = named or [*map(str, places), *(path for each in PYTHONS if (path := shutil.which(f"python{each}")))]
    found: dict[str, str] = {}
    for path in candidates:
        code = "import sys, venv, ensurepip; print(*sys.version_info[:2], sep='.')"
        said = subprocess.run([path, "-c", code], capture_output=True, text=True).stdout.strip()
        if said in PYTHONS:
            found.setdefault(said, path)
        elif named:
            sys.exit(f"{path} is no Python of {', '.join(PYTHONS)} that can make environments")
    return dict(sorted(found.items(), key=lambda item: PYTHONS.index(item[0])))


def try_wheel(wheel: Path, python: str) -> str:
    """Installs the wheel where nothing else is and uses it; what an installation weighs."""
    with tempfile.TemporaryDirectory() as folder:
        env = Path(folder, "env")
        run(python, "-m", "venv", env)
        own = env / "bin/python"
        install = (own, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile")  # a tenth of it is imported
        run(*install, "-c", ROOT / "constraints.txt", wheel)
        run(own, "-m", "pip", "check", "--disable-pip-version-check")
        run(env / "bin/gnnkit", "doctor", cwd=Path(folder), allowed=(0, 1))  # 1 is for warnings: a machine without a GPU has some
        return f"{run(own, '-c', USE, cwd=Path(folder)).splitlines()[-1]}; {run(own, '-c', WEIGHT)}"


def try_sdist(sdist: Path) -> str:
    """Has the unpacked sdist pass the tests of packaging and of batches; what pytest says."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (project,) = Path(folder).iterdir()
        tests = ("tests/packaging", "tests/sampling/test_reference.py")
        return run(sys.executable, "-m", "pytest", "-q", "-m", "not slow", *tests, cwd=project).splitlines()[-1]


def main() -> None:
    """Checks everything; ends with 1 at the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="install with this interpreter; without it, with all that are found")
    parser.add_argument("--oldest", action="store_true", help="install with the oldest of them alone")
    options = parser.parse_args()
    if wrong := contradictions(version()):
        sys.exit("\n".join(wrong))
    wheel, sdist = build()
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB), {sdist.name} ({sdist.stat().st_size / 1e6:.1f} MB)", flush=True)
    found = interpreters(options.python)
    pythons = dict([*found.items()][:1]) if options.oldest else found
    with ThreadPoolExecutor(2) as pool:
        of_sdist = pool.submit(try_sdist, sdist)
        for each, said in zip(pythons, pool.map(lambda python: try_wheel(wheel, python), pythons.values()), strict=True):
            print(f"Python {each}: {said}", flush=True)
        print(f"{sdist.name}: {of_sdist.result()}", flush=True)
    for each in sorted({*PYTHONS} - {*found}):
        print(f"Python {each}: not found", flush=True)
    if "[project.urls]" not in (ROOT / "pyproject.toml").read_text():
        print("nothing says where the project is: add [project.urls] to pyproject.toml and repository-code to CITATION.cff first")
    print(f"upload it with: python -m twine upload {wheel.relative_to(ROOT)} {sdist.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
