"""Makes a virtual environment that gnnkit runs in, or returns at once where it is up to date.

    python3 tools/setup_env.py --env .venv --group test

Needs nothing but the standard library of Python 3.10 or newer. A torch (2.3 or newer) that the calling interpreter already
has is used as it is instead of being downloaded again. The size of the download is looked up and printed before it starts.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).resolve().parent.parent
MINIMUM_TORCH = (2, 3)
MINIMUM_PIP = (25, 1)  # the first that installs dependency groups
# Packages that come with a reused torch, or that its binaries depend on: their pins would replace what is there.
NOT_PINNED_WITH_REUSED_TORCH = ("torch==", "numpy==")
BUILD_TOOLS = ("hatchling>=1.26", "editables>=0.5")  # for installing the project in place without an isolated build
# Unpacked wheels take about twice their size, and both are on the disk for a moment.
DISK_PER_DOWNLOAD = 3


def say(text: str) -> None:
    """Prints one line at once, also into a pipe."""
    print(f"gnnkit: {text}", flush=True)


def version_tuple(version: str) -> tuple[int, ...]:
    """``"2.13.0+cpu"`` as ``(2, 13)``."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


def reusable_torch() -> str | None:
    """The version of the calling interpreter's torch where it is new enough, else None."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
    return version if version_tuple(version) >= MINIMUM_TORCH else None


def create(env: Path, reuse: bool) -> None:
    """Creates the environment; with ``reuse`` it also sees the calling interpreter's packages."""
    if sys.prefix != sys.base_prefix and reuse:  # from inside another environment, whose packages --system-site-packages would miss
        command, extra_path = [], sysconfig.get_path("purelib")
    else:
        command, extra_path = (["--system-site-packages"] if reuse else []), None
    made = subprocess.run([sys.executable, "-m", "venv", *command, str(env)], capture_output=True, text=True)
    if made.returncode:  # Debian keeps ensurepip in a package of its own
        bare = subprocess.run([sys.executable, "-m", "venv", "--without-pip", *command, str(env)], capture_output=True, text=True)
        pip = [sys.executable, "-m", "pip", "--python", str(env / "bin/python"), "install", "-q", "pip"]
        if bare.returncode or subprocess.run(pip).returncode:
            shutil.rmtree(env, ignore_errors=True)
            sys.exit(
                f"gnnkit: {sys.executable} cannot create virtual environments ({made.stderr.strip() or made.stdout.strip()}); "
                "install its venv module (on Debian and Ubuntu: python3-venv) or name another Python: make PYTHON=/path/to/python3.11"
            )
    if extra_path:
        site = subprocess.check_output([str(env / "bin/python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
        Path(site.strip(), "reused-packages.pth").write_text(extra_path + "\n")


def pip(env: Path, *arguments: str) -> None:
    """Runs the environment's pip; ends the program with one sentence where it fails."""
    command = [str(env / "bin/python"), "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=ROOT).returncode:
        sys.exit(f"gnnkit: `{' '.join(command)}` failed, see above; without a network, set up once where there is one")


def upgrade_pip(env: Path) -> None:
    """Brings in a pip that knows dependency groups."""
    code = "from importlib import metadata; print(metadata.version('pip'))"
    version = subprocess.check_output([str(env / "bin/python"), "-c", code], text=True).strip()
    if version_tuple(version) < MINIMUM_PIP:
        pip(env, "install", "-q", "--upgrade", "pip>=" + ".".join(map(str, MINIMUM_PIP)))


def file_size(url: str) -> int | None:
    """Bytes behind a URL, or None where that cannot be found out."""
    parts = urlparse(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return path.stat().st_size if path.is_file() else None
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE"))
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10, context=context) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def resolve(env: Path, arguments: list[str]) -> list[tuple[str, str, str]]:
    """Asks pip what it would install: ``[(name, version, url)]``, without the project itself."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        pip(env, "install", "-q", "--dry-run", "--report", str(report), *arguments)
        items = json.loads(report.read_text())["install"]
    return [
        (item["metadata"]["name"], item["metadata"]["version"], item["download_info"]["url"])
        for item in items
        if "dir_info" not in item["download_info"]
    ]


def announce(env: Path, items: list[tuple[str, str, str]]) -> None:
    """Says how much will be downloaded, and refuses where it cannot fit on the disk."""
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(file_size, (url for _, _, url in items)))
    known = sum(size for size in sizes if size is not None)
    unknown = sizes.count(None)
    largest = sorted(zip(sizes, items, strict=True), key=lambda pair: -(pair[0] or 0))[:3]
    names = ", ".join(f"{item[0]} {size / 1e6:.0f} MB" for size, item in largest if size)
    more = f" and {unknown} of unknown size" if unknown else ""
    say(f"downloading {max(known / 1e6, 1):.0f} MB in {len(items)} packages{more} (largest: {names}), less what pip has in its cache")
    free = shutil.disk_usage(env).free
    if free < DISK_PER_DOWNLOAD * known:
        sys.exit(f"gnnkit: {DISK_PER_DOWNLOAD * known / 1e9:.1f} GB are needed in {env}, {free / 1e9:.1f} GB are free")


def constraint_arguments(env: Path, options: argparse.Namespace, reuse: bool) -> list[str]:
    """``-c`` options; pins that would replace a reused torch are left out, ``--torch`` takes the place of torch's pin."""
    arguments: list[str] = []
    unpinned = NOT_PINNED_WITH_REUSED_TORCH if reuse else ("torch==",) if options.torch else ()
    for name in options.constraint:
        path = ROOT / name
        if unpinned:
            lines = [line for line in path.read_text().splitlines() if not line.startswith(unpinned)]
            lines += [f"torch=={options.torch}"] if options.torch else []
            path = env / path.name
            path.write_text("\n".join(lines) + "\n")
        arguments += ["-c", str(path)]
    return arguments


def install(env: Path, options: argparse.Namespace, reuse: bool) -> None:
    """Installs the dependencies, then the project in place."""
    upgrade_pip(env)
    constraints = constraint_arguments(env, options, reuse)
    extras = f"[{','.join(options.extra)}]" if options.extra else ""
    groups = [argument for group in options.group for argument in ("--group", group)]
    say("looking up what is to be downloaded")
    items = resolve(env, [*constraints, *groups, f".{extras}", *BUILD_TOOLS])
    if items:
        announce(env, items)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as exact:
            exact.write("".join(f"{name}=={version}\n" for name, version, _ in items))
            exact.flush()
            # A person watches pip's own bars; a log needs no line per package.
            pip(env, "install", *([] if sys.stdout.isatty() else ["-q"]), "--no-compile", "--no-deps", "-r", exact.name)
        compile_all(env)
    pip(env, "install", "-q", "--no-deps", "--no-build-isolation", "-e", ".")
    wheels = sorted(str(path) for path in Path(options.wheels).glob("*.whl")) if options.wheels else []
    if wheels:
        pip(env, "install", "-q", "--no-deps", "--no-index", *wheels)


def inputs_of(constraints: list[str]) -> str:
    """The digest of the files that an environment is made from."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", *constraints):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def compile_all(env: Path) -> None:
    """Compiles the installed modules with all processors, where pip would take one; files for newer Pythons are left as they are."""
    subprocess.run([str(env / "bin/python"), "-m", "compileall", "-qq", "-j", "0", str(env / "lib")])


def stamp_of(options: argparse.Namespace, torch: str | None) -> dict[str, object]:
    """What an environment depends on; one made for more groups also serves fewer."""
    chosen = {"torch": torch or options.torch, "extras": sorted(options.extra), "wheels": options.wheels}
    return {"inputs": inputs_of(options.constraint), "python": sys.version, **chosen}


def groups_of(env: Path, stamp: dict[str, object]) -> set[str] | None:
    """The groups that the environment was made for, or None where it is not there or was made from other inputs."""
    try:
        found = json.loads((env / "gnnkit-stamp.json").read_text())
    except (OSError, ValueError):
        return None
    have = set(found.pop("groups", []))
    return have if found == stamp and (env / "bin/python").exists() else None


def is_current(env: Path, stamp: dict[str, object], groups: list[str]) -> bool:
    """Whether the environment was made from the same inputs, for these groups at least."""
    have = groups_of(env, stamp)
    return have is not None and set(groups) <= have


def main() -> None:
    """Parses the command line and brings one environment up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=Path(".venv"), help="where the environment is")
    parser.add_argument("--group", action="append", default=[], help="a dependency group to install")
    parser.add_argument("--extra", action="append", default=[], help="an extra to install")
    parser.add_argument("--constraint", action="append", default=[], help="a constraints file, relative to the project")
    parser.add_argument("--wheels", default="", help="a folder of wheels to install on top")
    parser.add_argument("--torch", help="this version of torch, whatever is installed and whatever the constraints say")
    options = parser.parse_args()
    torch = None if options.torch else reusable_torch()
    env = (ROOT / options.env).resolve()
    stamp = stamp_of(options, torch)
    if is_current(env, stamp, options.group):
        return
    env.mkdir(parents=True, exist_ok=True)
    with open(env / ".setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(env, stamp, options.group):
            return
        groups = {*options.group, *(groups_of(env, stamp) or ())}
        (env / "gnnkit-stamp.json").unlink(missing_ok=True)
        say(f"setting up {env.name} with Python {sys.version.split()[0]}" + (f" and its torch {torch}" if torch else ""))
        if not (env / "bin/python").exists():
            create(env, reuse=torch is not None)
        install(env, options, reuse=torch is not None)
        (env / "gnnkit-stamp.json").write_text(json.dumps({**stamp, "groups": sorted(groups)}))


if __name__ == "__main__":
    main()
