"""Compiling: once on a machine, which it says; no interrupt of it is lost, and none leaves Numba in a state in which it cannot go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

# Is interrupted again and again while it compiles, ever later; then compiles something of its own to the end, and something else in
# another thread, which a lock that was left taken would hold up, and asks for the lock between processes.
PROGRAM = """
import os, signal, threading
import numba
from filelock import FileLock
from gnnkit.kernels import jit
from gnnkit.kernels.folder import kernel_cache_root
from gnnkit.sampling import kinds

@jit.lazy_kernel
def add(a, b):
    return a + b

noticed = 0
for number in range(15):
    interrupting = threading.Timer(0.02 * number, os.kill, (os.getpid(), signal.SIGINT))
    try:
        interrupting.start()
        kinds.warm()
    except KeyboardInterrupt:
        noticed += 1
    interrupting.join()
answers = [add(1, 2)]
other = threading.Thread(target=lambda: answers.append(numba.njit(lambda a: a * 2)(3)))
other.start()
other.join()
with FileLock(kernel_cache_root() / "compile.lock", timeout=60):
    print(noticed, *answers)
"""


@pytest.mark.slow
def test_every_interrupt_is_noticed_and_compiling_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=240)
    assert (done.stdout.split(), done.stderr) == (["15", "3", "6"], "")


ONE_KERNEL = """
from gnnkit.kernels import jit

@jit.kernel("int64(int64, int64)")
def add(a, b):
    return a + b

told = []
jit.warm(told.append)
print(add(1, 2), told[-1].kind, told[-1].text)
"""


@pytest.mark.slow
def test_nobody_waits_for_ever_for_who_compiles(tmp_path: Path) -> None:
    """Another process holds the lock and does not go on: the kernel is compiled nevertheless."""
    kernels = tmp_path / "cache/gnnkit/kernels"
    kernels.mkdir(parents=True, mode=0o700)
    program = tmp_path / "program.py"
    program.write_text(ONE_KERNEL.replace("told = []", "told = []\njit._LOCK_TIMEOUT_S = 0.2  # a minute, which no test should take"))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with FileLock(kernels / "compile.lock"):
        done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("3 end"), done


@pytest.mark.slow
def test_kernels_belong_to_the_user_of_the_machine_and_are_compiled_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ONE_KERNEL)
    cache, shown = tmp_path / "cache", []
    for home in ("mine", "of-the-team"):  # compiled kernels are executed: they do not lie where data may be shared
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "GNNKIT_HOME": str(tmp_path / home)}
        done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=True)
        shown.append(done.stdout.strip())
        assert not (tmp_path / home).exists()
    assert "once on this machine" in shown[0] and shown[1] == "3 end"
    kernels = cache / "gnnkit" / "kernels"
    assert any(kernels.rglob("*.nbc")) and kernels.stat().st_mode & 0o077 == 0
    kernels.chmod(0o777)  # somebody else could have put something into it
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    subprocess.run([sys.executable, str(program)], env={**environment, "TMPDIR": str(elsewhere)}, timeout=120, check=True)
    assert any(elsewhere.rglob("*.nbc"))


@pytest.mark.slow
def test_a_folder_that_is_named_is_used_where_it_is_this_users(tmp_path: Path) -> None:
    program, named = tmp_path / "program.py", tmp_path / "named"
    program.write_text(ONE_KERNEL)
    named.mkdir(mode=0o700)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "GNNKIT_KERNEL_CACHE": str(named)}

    def compile_there() -> tuple[bool, bool]:
        subprocess.run([sys.executable, str(program)], env=environment, timeout=120, check=True, stdout=subprocess.DEVNULL)
        return any(named.rglob("*.nbc")), any((tmp_path / "cache").rglob("*.nbc"))

    tmp_path.chmod(0o777)  # the folders above it are not looked at
    assert compile_there() == (True, False)
    tmp_path.chmod(0o700)
    shutil.rmtree(named)
    named.mkdir()
    named.chmod(0o777)
    assert compile_there() == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("add(1, 2)", "jit.warm()"), ("jit.warm()", "add(1, 2)")], ids=["a call is first", "warming is first"])
def test_a_call_before_warming_has_the_same_machine_code(tmp_path: Path, words: tuple[str, str]) -> None:
    """Whichever is first compiles; the other, in a process of its own, loads what that has written."""
    program, cache, written = tmp_path / "program.py", tmp_path / "cache", []
    program.write_text(ONE_KERNEL.partition("told = []")[0] + "import sys\nexec(sys.argv[1])\nassert add.signatures\n")
    for word in words:
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        subprocess.run([sys.executable, str(program), word], env=environment, timeout=120, check=True)
        written.append({file: file.stat().st_mtime_ns for file in cache.rglob("*.nb?")})
    assert len(written[0]) == 2 and written[0] == written[1]


CONSTANTS = """
from gnnkit.kernels import jit

@jit.helper
def scaled(value, factor, negates):
    return -value * factor if negates else value * factor

@jit.kernel("int64(int64)")
def combine(value):
    return scaled(value, 2, False) + scaled(value, 3, True) + scaled(value, value, False)

@jit.lazy_kernel
def call_a_kernel(value):
    return combine(value)

print(combine(5), len(scaled.signatures))
for function, arguments in (scaled, (1, 2, False)), (call_a_kernel, (5,)):
    try:
        function(*arguments)
    except TypeError:
        print("refused")
"""


def test_kernels_call_helpers_which_are_compiled_once_whatever_constants_they_are_given(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CONSTANTS)
    environment, shown = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}, []
    for _ in range(2):  # the second one loads what the first one has written, in which nothing of the helper is left to compile
        done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120, check=True)
        shown.append(done.stdout)
    assert shown == ["20 1\nrefused\nrefused\n", "20 0\nrefused\nrefused\n"]
