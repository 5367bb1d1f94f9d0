"""Compiling kernels: once per machine, into a place that is writable, by one process at a time.

Numba's own cache lives beside the source, or in a per-user folder where that is read-only, forgets callees that changed in
another module, and lets two processes compile the same function at once. Kernels here are cached under
``<cache>/kernels/<digest of the modules that a kernel is made of>`` instead, and ``warm`` compiles all of them under a file lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
from numba import types
from numba.core import environment
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python
from numba.core.sigutils import normalize_signature

from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import why_unwritable
from gnnkit.kernels.folder import kernel_cache_root
from gnnkit.waiting import begin_apart, is_done

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

# The kernels that ``warm`` compiles, with their signatures.
_kernels: list[tuple[Any, str]] = []
_registering = threading.Lock()
# A version of gnnkit that has not run for so long is not coming back; if it does, it compiles again.
_UNUSED_S = 30 * 86400.0
# Compiling a kernel takes seconds; a process that holds the lock for longer than this has been stopped, and is not waited for.
_LOCK_TIMEOUT_S = 60.0
_ONCE = "into machine code, once on this machine"


def _sources(module_name: str, seen: set[str]) -> set[str]:
    """The files of a module and of every gnnkit module that it takes functions from, however far."""
    module = sys.modules[module_name]
    path = module.__file__
    if path is None or path in seen:
        return seen
    seen.add(path)
    for value in list(vars(module).values()):
        home = getattr(getattr(value, "py_func", value), "__module__", None)
        if isinstance(home, str) and home.startswith("gnnkit."):
            _sources(home, seen)
    return seen


@cache
def _digest(module_name: str) -> str:
    """Changes whenever Numba or anything that a module's functions may call does; callees are imported before these are decorated."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(_sources(module_name, set())):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()


class _KernelLocator:
    """Tells Numba's cache where a kernel's machine code lives (numba.core.caching._CacheLocator's interface)."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._digest = _digest(py_func.__module__)
        with contextlib.suppress(OSError):  # not compiled yet, or another user's folder
            os.utime(self.get_cache_path())  # when it was last used, for ``prune_kernels``

    def ensure_cache_path(self) -> None:
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(kernel_cache_root() / self._digest[:16])

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return str(self._lineno)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _KernelLocator:
        return cls(py_func, py_file)


class _KernelCacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_KernelLocator]

    def reduce(self, result: Any) -> tuple[Any, ...]:
        """As Numba's own, but for what others could be linked with, of which it has the names alone: loading took thrice as long."""
        (name, kind, (machine_code, _)), *others = super().reduce(result)
        lines = (f'define void @"{function.name}"() {{ unreachable }}' for function in result.library.get_defined_functions())
        return (name, kind, (machine_code, llvmlite.binding.parse_assembly("\n".join(lines)).as_bitcode())), *others


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turns errors of the system, while it writes into the folder of kernels, into the user's."""
    try:
        yield
    except OSError as error:
        root = kernel_cache_root()
        text = f"compiled kernels cannot be written to {root}: {why_unwritable(error, root)}"
        raise PlanError(text, "free some space there, or set XDG_CACHE_HOME to a folder on another disk") from error


class _KernelUnpickler(pickle.Unpickler):
    """Reads a kernel's machine code, without importing what functions of Numba's in it were compiled from: a tenth of a first batch."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _environment if found is environment._rebuild_env else found


def _environment(module: str, constants: list[Any], name: str) -> Any:
    """As Numba's own; of a module that is not imported its name alone, which is all that machine code without Python objects asks for."""
    if environment.lookup_environment(name) is None and module not in sys.modules:
        made = environment.Environment({"__name__": module})
        made.consts[:], made.env_name = constants, name
        environment.Environment._memo[name] = made
        return made
    return environment._rebuild_env(module, constants, name)


class _KernelFile(IndexDataCacheFile):  # type: ignore[misc]
    def _load_data(self, name: str) -> Any:
        with open(self._data_path(name), "rb") as file:
            return _KernelUnpickler(file).load()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's, without what only compiling needs: registering that takes five times as long as loading every kernel of an epoch."""

    _impl_class = _KernelCacheImpl

    def __init__(self, py_func: Callable[..., Any]) -> None:
        super().__init__(py_func)
        self._cache_file = _KernelFile(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def holds(self, signature: Any) -> bool:
        """Whether there is machine code for a signature."""
        index: Any = ()
        with self._guard_against_spurious_io_errors():
            index = self._cache_file._load_index()
        return self._index_key(signature, cpu_target.target_context.codegen()) in index

    def save_overload(self, signature: Any, data: Any) -> None:
        """As Numba's own; where it cannot be written, the error says what to do."""
        with _told():
            super().save_overload(signature, data)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """As Numba's own, which has everything registered first. The symbols that kernels call are known by then: ``_register_runtime``.

        (A kernel that hashes would also need those that ``numba.cpython.hashing`` makes known.)
        """
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target_context)


class _LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code that others are linked with, which optimise all of it together and turn it into machine code: not once more for each caller."""

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _HelperCompiler(Compiler):  # type: ignore[misc]
    """Numba's, up to code that kernels can be linked with; it is two thirds faster than one that compiles every helper by itself."""

    def compile_extra(self, function: Callable[..., Any]) -> Any:
        context = self.state.targetctx
        self.state.library = _LinkedLibrary(context.codegen(), function.__qualname__)
        self.state.flags.no_compile = True
        result = super().compile_extra(function)
        context.insert_user_function(result.fndesc, result.fndesc, [result.library])
        return result._replace(entry_point=result.fndesc)  # by which callers find it; Python cannot call it


def _compiled(function: Callable[..., Any], *, nogil: bool = True, **options: Any) -> Any:
    if numba.config.DISABLE_JIT:
        raise PlanError("NUMBA_DISABLE_JIT is set, and gnnkit's kernels run only as machine code", "unset it before Python starts")
    return numba.njit(nogil=nogil, error_model="numpy", **options)(function)


def _helper(function: F, allocates: bool) -> F:
    dispatcher = _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=_HelperCompiler, _nrt=allocates)
    find = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, named: find([types.unliteral(arg) for arg in args], named)  # not once for every constant
    dispatcher.add_overload = lambda result: dispatcher.overloads.update({tuple(result.signature.args): result})
    return cast(F, dispatcher)


def helper(function: F) -> F:
    """Marks a function that kernels call; it is compiled into them and not cached by itself.

    It makes no array, and counts no references to those that it is given, which its caller holds: counting is an atomic instruction for
    each array at each call, and took more than half of the time of a walk.
    """
    return _helper(function, allocates=False)


def allocating_helper(function: F) -> F:
    """Marks a ``helper`` that makes arrays; it is not for inner loops."""
    return _helper(function, allocates=True)


def kernel(signature: str, *, nogil: bool = True) -> Callable[[F], F]:
    """Marks an entry point into machine code that every run needs: compiled for one signature, by ``warm`` or by a call before that.

    Args:
        signature: Numba's notation, e.g. ``"int64(int64[::1], int64)"``.
        nogil: Whether it runs without the GIL; False for what is done before another thread could take it.
    """

    def decorate(function: F) -> F:
        dispatcher = _dispatcher(function, nogil, signature)
        _kernels.append((dispatcher, signature))
        return cast(F, dispatcher)

    return decorate


def lazy_kernel(function: F, *, nogil: bool = True) -> F:
    """Marks an entry point that few runs need: compiled for the types of its first call; ``nogil`` as for ``kernel``."""
    return cast(F, _dispatcher(function, nogil))


def _refuse_call(*_: Any) -> None:
    raise TypeError("kernels call helpers, and no kernels: of these, nothing is kept that others could be linked with")


def _dispatcher(function: Callable[..., Any], nogil: bool, declared: str | None = None) -> Any:
    dispatcher = _compiled(function, nogil=nogil)
    dispatcher._cache = _KernelCache(function)
    compile_kernel = dispatcher.compile

    def compile_registered(signature: Any) -> Any:
        _register_runtime()
        if declared is not None and normalize_signature(signature)[0] == normalize_signature(declared)[0]:
            signature = declared  # its machine code is kept under these words: a call asks with its types, and would compile it once more
        if not dispatcher._cache.holds(signature):
            _register_with_numba()
        return compile_kernel(signature)

    dispatcher.compile = lambda signature: apart(lambda: compile_registered(signature))
    dispatcher.get_call_template = _refuse_call
    return dispatcher


def warm(events: EventSink = ignore_events) -> None:
    """Compiles, or loads, every kernel whose module was imported; afterwards no call of these compiles anything.

    Several processes may call it at once: one compiles a kernel, the others wait and load what it wrote. What is there already is loaded
    without waiting: a process that starts must not wait for another one's kernels of a kind that it has no use for.

    Args:
        events: Receives the stage "compile", a unit per kernel. Where something is compiled, its end says that this is done once.
    """
    pending = [(dispatcher, signature) for dispatcher, signature in _kernels if not dispatcher.signatures]
    if not pending:
        return
    with Stage(events, "compile", label="sampling kernels", total=len(pending), unit="kernels") as stage:
        compiles = False
        for dispatcher, signature in pending:
            compiles |= apart(partial(_compile_in_turn, dispatcher, signature))
            stage.advance(text=_ONCE if compiles else "")
        if compiles:
            stage.summary = _ONCE


def _compile_in_turn(dispatcher: Any, signature: str) -> bool:
    """Compiles or loads a kernel; whether there was something to compile, for this process or for another one that had the lock."""
    missing = not dispatcher._cache.holds(signature)
    with _told(), contextlib.ExitStack() as held:
        if missing:
            from filelock import FileLock  # only to compile

            with contextlib.suppress(TimeoutError):  # without it several may compile the same, and each file that they write is whole
                held.enter_context(FileLock(kernel_cache_root() / "compile.lock", timeout=_LOCK_TIMEOUT_S))
        dispatcher.compile(signature)
    return missing


@cache
def _register_runtime() -> None:
    """Makes known what machine code of any kernel calls: allocating arrays, and counting references to them.

    As Numba does, without compiling what other machine code is linked with: each kernel on disk has its own copy of that.
    """
    with _registering:
        for name, address in _nrt_python.c_helpers.items():
            llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@cache
def _register_with_numba() -> None:
    """Has Numba take in everything that is registered with it, which it would do in the middle of the first compilation."""
    with _registering:
        cpu_target.target_context.refresh()


def apart(work: Callable[[], R]) -> R:
    """Does something with Numba in another thread than the main one, which is the one that interrupts reach.

    One that hits Numba's registering in the middle ends its list of what it has taken in for good, and with it every later compilation of
    the process (seen with Numba 0.68); one that hits llvmlite or a file lock where they have just taken a lock leaves it taken. An
    interrupted caller does not wait for what was begun; the next one does.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome = begin_apart(work, "gnnkit-compiling", daemon=False)
    is_done(outcome)
    return outcome.result()


def prune_kernels(unused_s: float = _UNUSED_S) -> list[tuple[Path, int]]:
    """Removes the compiled kernels that no process has loaded for a while: those of versions that are not in use any more.

    Args:
        unused_s: How long, in seconds.

    Returns:
        The removed folders and their bytes; nothing while some process compiles.
    """
    from filelock import FileLock, Timeout

    root, removed = kernel_cache_root(), []
    oldest = time.time() - unused_s
    with contextlib.suppress(Timeout), FileLock(root / "compile.lock", timeout=0):
        for folder in sorted(path for path in root.iterdir() if path.is_dir() and path.stat().st_mtime < oldest):
            count = sum(path.stat().st_size for path in folder.iterdir())
            shutil.rmtree(folder, ignore_errors=True)
            removed.append((folder, count))
    return removed
