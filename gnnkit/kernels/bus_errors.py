"""A handler of SIGBUS, for mapped memory that is gone; in machine code, because no other can run in the middle of a kernel.

It acts where the kernel reports a fault, at an address of a table of ranges, in a thread of a table of threads, and nowhere else. There
it puts zeros from the page of the fault to the range's end, and notes that in both tables; the thread goes on, and its owner
looks there afterwards. For anything else the handler that was there before is put back and the signal comes again: ``faulthandler``
writes its traceback, the system writes its core file.
"""

# The bodies below build LLVM IR: llvmlite has no type hints.
# mypy: disable-error-code="no-untyped-call,import-untyped"

from __future__ import annotations

import ctypes
import mmap
import platform
import signal
import sys
import threading
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils
from numpy.typing import NDArray

from gnnkit.kernels.jit import apart

# Columns of a table of ranges: addresses of the first byte and of the one behind the last page, and whether a fault was found there.
START, END, GONE = range(3)
# Columns of a table of threads: the system's number of a thread, and one more than the row of the range that was gone last.
THREAD, HIT = range(2)

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
# ``siginfo_t`` of 64-bit Linux: offsets of si_code and si_addr.
_CODE, _ADDRESS = 8, 16
_SA_SIGINFO, _SA_ONSTACK = 0x4, 0x08000000
_lock = threading.Lock()


class _SigAction(ctypes.Structure):
    """``struct sigaction`` of the C libraries of 64-bit Linux."""

    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint8 * 128), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


class BusErrors:
    """The handler of this process.

    Args:
        ranges: int64 ``[n, 3]``, contiguous, kept for as long as the process lives; rows of zeros are no ranges.
        threads: int64 ``[t, 2]``, likewise.
    """

    def __init__(self, ranges: NDArray[np.int64], threads: NDArray[np.int64]) -> None:
        self._kept = ranges, threads
        self._before, self._default = _SigAction(), _SigAction(handler=None)
        self._misses = np.zeros(1, np.int64)
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._own: int | None = None
        self._engine: Any = None

    @staticmethod
    def is_possible() -> bool:
        """Whether this system is one whose structures are known."""
        known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and sys.maxsize > 1 << 32
        return known and hasattr(ctypes.CDLL(None), "gettid")

    def install(self) -> None:
        """Sets the handler, unless it is the one that is set; what was set before is kept for all other faults."""
        with _lock:
            if self._own is None:
                self._own = apart(self._compile)
            now = _SigAction()
            self._libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
            if now.handler == self._own:
                return
            ctypes.memmove(ctypes.byref(self._before), ctypes.byref(now), ctypes.sizeof(now))
            self._misses[0] = 0
            own = _SigAction(handler=self._own, flags=_SA_SIGINFO | _SA_ONSTACK)
            self._libc.sigaction(signal.SIGBUS, ctypes.byref(own), None)

    def _compile(self) -> int:
        llvm.initialize_native_target()  # does nothing where Numba has done it
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple().create_target_machine(opt=0)  # faults are rare, compiling is not
        module = ir.Module("gnnkit_bus_errors")
        module.triple, module.data_layout = target.triple, str(target.target_data)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I32, _I64, _I64]), "gnnkit_on_bus_error")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        number, info, _ = function.args
        (ranges, threads), page = self._kept, mmap.PAGESIZE

        def load(address: Any, kind: Any = _I64) -> Any:
            return builder.load(builder.inttoptr(address, kind.as_pointer()))

        def store(value: Any, address: Any) -> None:
            builder.store(value, builder.inttoptr(address, _I64.as_pointer()))

        def call(name: str, result: Any, *arguments: Any) -> Any:
            address = _I64(ctypes.cast(getattr(self._libc, name), ctypes.c_void_p).value)
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)

        code, fault = load(builder.add(info, _I64(_CODE)), _I32), load(builder.add(info, _I64(_ADDRESS)))
        is_fault, thread = builder.icmp_signed(">", code, _I32(0)), builder.sext(call("gettid", _I32), _I64)
        entered = cgutils.alloca_once_value(builder, _I64(0))  # address of the thread's row
        with cgutils.for_range(builder, _I64(len(threads))) as loop:
            row = builder.add(_I64(threads.ctypes.data), builder.mul(loop.index, _I64(16)))
            with builder.if_then(builder.icmp_signed("==", load(builder.add(row, _I64(8 * THREAD))), thread)):
                builder.store(row, entered)
        is_entered = builder.icmp_signed("!=", builder.load(entered), _I64(0))
        with builder.if_then(builder.and_(is_fault, is_entered)), cgutils.for_range(builder, _I64(len(ranges))) as loop:
            row = builder.add(_I64(ranges.ctypes.data), builder.mul(loop.index, _I64(24)))
            end = load(builder.add(row, _I64(8 * END)))
            start = load(builder.add(row, _I64(8 * START)))
            inside = builder.and_(builder.icmp_unsigned("<=", start, fault), builder.icmp_unsigned("<", fault, end))
            with builder.if_then(inside):
                first = builder.and_(fault, _I64(-page))
                protection, flags = _I32(mmap.PROT_READ), _I32(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10)  # MAP_FIXED
                found = call("mmap", _I64, first, builder.sub(end, first), protection, flags, _I32(-1), _I64(0))
                with builder.if_then(builder.icmp_signed("==", found, first)):
                    store(_I64(1), builder.add(row, _I64(8 * GONE)))
                    store(builder.add(loop.index, _I64(1)), builder.add(builder.load(entered), _I64(8 * HIT)))
                    builder.ret_void()
        # Not ours. A handler that calls this one again, because it was set later, is not called a second time.
        misses = _I64(self._misses.ctypes.data)
        is_first = builder.icmp_signed("==", load(misses), _I64(0))
        store(_I64(1), misses)
        before, default = (_I64(ctypes.addressof(action)) for action in (self._before, self._default))
        call("sigaction", _I32, number, builder.select(is_first, before, default), _I64(0))
        with builder.if_then(builder.not_(is_fault)):  # a process has sent it, and no instruction is going to fail again
            call("raise", _I32, number)
        builder.ret_void()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), target)
        self._engine.finalize_object()
        return int(self._engine.get_function_address(function.name))
