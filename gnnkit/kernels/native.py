"""The few machine operations that Numba does not offer: loads, copies, prefetches and calls by address, and a 64 x 64 high product.

Kernels address memory by tables of plain integers, so that one compiled kernel serves any number of parts, any dtype and
any kind of memory (file mapping, shared memory, a user's tensor) without being compiled again.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper
from gnnkit.kernels.keys import GOLDEN, HASH_FACTORS

# The bodies below build LLVM IR: llvmlite has no type hints, and an intrinsic's signature is what it returns.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-untyped"


_I8, _I32, _I64, _I128 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(128)
_F32 = ir.FloatType()
_KEYS = types.UniTuple(types.uint64, 4)


@helper
def begin_of(array: NDArray[Any]) -> int:
    """The address of an array's first element. Numba's own number is unsigned, and what is added to it makes a float of both.

    An array that a kernel makes is freed behind the last line that names it, also where its address is still in use.
    """
    return np.int64(array.ctypes.data)


@intrinsic
def load_i64(typing_context, address):
    """The int64 at ``address``."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()), align=8)

    return types.int64(types.int64), codegen


def _store(kind):
    def codegen(context, builder, signature, args):
        builder.store(builder.trunc(args[1], kind) if kind is _I32 else args[1], builder.inttoptr(args[0], kind.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def store_i64(typing_context, address, value):
    """Writes an int64 to ``address``."""
    return _store(_I64)


@intrinsic
def store_i32(typing_context, address, value):
    """Writes the low half of an int64 to ``address``."""
    return _store(_I32)


def _ask_for_line(builder, address, locality):
    kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, _I8.as_pointer()), _I32(0), _I32(locality), _I32(1)])


@intrinsic
def prefetch_into(typing_context, first, address):
    """Asks the processor to load the cache line at ``address``; any address is allowed, also one that is not mapped.

    It is loaded into the ``first`` cache, or no nearer than into the second, which waits for more lines at a time on many processors.
    """

    def codegen(context, builder, signature, args):
        for locality in _localities(builder, args[0]):
            _ask_for_line(builder, args[1], locality)
        return context.get_dummy_value()

    return types.void(types.boolean, types.int64), codegen


@helper
def prefetch(address: int) -> None:
    """``prefetch_into`` the first cache."""
    prefetch_into(True, address)


def _localities(builder, first):
    """The cache to ask into, once for the ``first`` and once for the second one: what is built for each is run where it is the one."""
    with builder.if_else(first) as (into_first, into_second):
        with into_first:
            yield 3
        with into_second:
            yield 2


@helper
def prefetch_bytes(first: bool, address: int, width: int) -> None:
    """``prefetch_into`` of the lines of a row but for its first one, where rows of this width follow each other from a line's beginning on.

    Each is asked for once: a second request would take as long as one for another line. A row of 400 bytes begins at a multiple of 16, and
    lies in seven.
    """
    for offset in range(LINE, width - min(width & -width, LINE), LINE):
        prefetch_into(first, address + offset)
    prefetch_into(first, address + width - 1)


@intrinsic
def copy_bytes(typing_context, target, source, count):
    """``memcpy(target, source, count)``."""

    def codegen(context, builder, signature, args):
        target, source = (builder.inttoptr(args[i], _I8.as_pointer()) for i in (0, 1))
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


# Bytes of a line of the cache on the machines that matter here.
LINE = 64
_LINE = ir.VectorType(_I8, LINE)


def _at(builder, base, offset):
    return builder.inttoptr(builder.add(base, offset), _LINE.as_pointer())


def prefetch_row(half: int):
    """An intrinsic like ``prefetch_bytes``, for a row of ``half`` to ``2 * half`` lines; without a loop."""

    @intrinsic
    def prefetch_lines(typing_context, first, address, width):
        def codegen(context, builder, signature, args):
            first, address, width = args
            begins = builder.and_(width, builder.neg(width))  # of this number rows begin at multiples, up to a line
            last = builder.sub(width, builder.select(builder.icmp_signed("<", begins, _I64(LINE)), begins, _I64(LINE)))
            for locality in _localities(builder, first):
                for i in range(1, half - 1):
                    _ask_for_line(builder, builder.add(address, _I64(LINE * i)), locality)
                for offset in (_I64(LINE * i) for i in range(half - 1, 2 * half)):
                    with builder.if_then(builder.icmp_signed("<", offset, last), likely=True):
                        _ask_for_line(builder, builder.add(address, offset), locality)
                _ask_for_line(builder, builder.add(address, builder.sub(width, _I64(1))), locality)
            return context.get_dummy_value()

        return types.void(types.boolean, types.int64, types.int64), codegen

    return prefetch_lines


def copy_row(half: int):
    """An intrinsic ``(target, source, width)``: copies a row of ``half`` to ``2 * half`` lines as its first ``half`` and its last ones.

    These may overlap.
    """

    @intrinsic
    def copy_lines(typing_context, target, source, width):
        def codegen(context, builder, signature, args):
            offsets = [_I64(LINE * i) for i in range(half)] + [builder.sub(args[2], _I64(LINE * i)) for i in range(half, 0, -1)]
            values = [builder.load(_at(builder, args[1], offset), align=1) for offset in offsets]
            for value, offset in zip(values, offsets, strict=True):
                builder.store(value, _at(builder, args[0], offset), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return copy_lines


@intrinsic
def stream_line(typing_context, target, source):
    """Copies a line past the caches to where a line begins; ``end_streams`` must follow before another thread may read it."""

    def codegen(context, builder, signature, args):
        value = builder.load(_at(builder, args[1], _I64(0)), align=LINE)
        stored = builder.store(value, _at(builder, args[0], _I64(0)), align=LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def end_streams(typing_context):
    """Waits until what ``stream_line`` has written is where other threads see it."""

    def codegen(context, builder, signature, args):
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence"), [])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def lines_of_stack(typing_context):
    """The address of 64 lines of the calling function's own memory; where a line begins."""

    def codegen(context, builder, signature, args):
        # Not by ``cgutils``, which fills it with one zero of its type: LLVM takes seconds over a value of so many elements.
        with builder.goto_entry_block():
            place = builder.alloca(ir.ArrayType(_I8, 64 * LINE))
        place.align = LINE
        return builder.ptrtoint(place, _I64)

    return types.int64(), codegen


def _element(builder, kind, base, index):
    """The pointer to an element of an array at an address. An address that a loop adds to keeps LLVM from doing several turns at once."""
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


def _read_element(kind, result, widened=lambda builder, value: value):
    """The signature and the code of an intrinsic ``(base, index)``."""

    def codegen(context, builder, signature, args):
        return widened(builder, builder.load(_element(builder, kind, *args)))

    return result(types.int64, types.int64), codegen


@intrinsic
def byte_at(typing_context, base, index):
    """Byte ``index`` of those at the address ``base``, as int32."""
    return _read_element(_I8, types.int32, lambda builder, value: builder.zext(value, _I32))


@intrinsic
def int32_at(typing_context, base, index):
    """Element ``index`` of the int32 at the address ``base``, widened to int64."""
    return _read_element(_I32, types.int64, lambda builder, value: builder.sext(value, _I64))


@intrinsic
def uint32_at(typing_context, base, index):
    """Element ``index`` of the uint32 at the address ``base``, widened to uint64."""
    return _read_element(_I32, types.uint64, lambda builder, value: builder.zext(value, _I64))


def _repeated(builder, value, count, kind=_I64):
    """A vector of so many times a number."""
    none = ir.Constant(ir.VectorType(kind, count), ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(none, value, _I32(0)), none, ir.Constant(ir.VectorType(_I32, count), None))


def _load_16(builder, address, kind=_I64):
    """A vector of the 16 numbers at an address."""
    return builder.load(builder.inttoptr(address, ir.VectorType(kind, 16).as_pointer()), align=kind.width // 8)


def _store_all(builder, values, address):
    """Writes a vector of numbers to an address."""
    builder.store(values, builder.inttoptr(address, values.type.as_pointer()), align=values.type.element.width // 8)


def _mixed(builder, values):
    """``keys.mix`` of each of 16 int64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        values = builder.xor(values, builder.lshr(values, _repeated(builder, _I64(shift), 16)))
        values = builder.mul(values, _repeated(builder, _I64(factor), 16))
    return values


def _multiplied_high(builder, a, b):
    """``multiply_high`` of 16 int64 each, by their halves: vectors have no product of 128 bits."""
    half, low = _repeated(builder, _I64(32), 16), _repeated(builder, _I64(0xFFFFFFFF), 16)
    (a_high, a_low), (b_high, b_low) = ((builder.lshr(value, half), builder.and_(value, low)) for value in (a, b))
    first = builder.lshr(builder.mul(a_low, b_low), half)
    second = builder.add(builder.mul(a_high, b_low), first)
    third = builder.add(builder.mul(a_low, b_high), builder.and_(second, low))
    highest = builder.add(builder.mul(a_high, b_high), builder.lshr(second, half))
    return builder.add(highest, builder.lshr(third, half))


def _folded(builder, key, values):
    """``keys.fold`` of a key and each of 16 int64."""
    golden = _repeated(builder, _I64(GOLDEN), 16)
    values = builder.xor(_repeated(builder, key, 16), builder.mul(values, golden))
    return _mixed(builder, builder.add(values, golden))


@intrinsic
def fold_16(typing_context, key, address):
    """``keys.fold`` of a key and each of the 16 uint64 at ``address``, in their place."""

    def codegen(context, builder, signature, args):
        _store_all(builder, _folded(builder, args[0], _load_16(builder, args[1])), args[1])
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64), codegen


def _hashed(builder, keys, source):
    """The variates (``stream.variate_u32``) of the 16 uint32 at an address; ``keys`` are four, see ``passes.KEY``."""

    def repeated(value):
        return _repeated(builder, value, 16, _I32)

    def halves(key):
        return [repeated(builder.trunc(half, _I32)) for half in (key, builder.lshr(key, _I64(32)))]

    values, (key, next_key, last_hash, hash_key) = _load_16(builder, source, _I32), cgutils.unpack_tuple(builder, keys, 4)
    with builder.if_else(builder.icmp_unsigned("!=", last_hash, _I64((1 << 64) - 1))) as (some_changed, none_changed):
        with some_changed:
            hashes = _folded(builder, hash_key, builder.zext(values, ir.VectorType(_I64, 16)))
            is_here = builder.icmp_unsigned("<=", hashes, _repeated(builder, last_hash, 16))
            each = builder.block, [builder.select(is_here, *keys) for keys in zip(halves(key), halves(next_key), strict=True)]
        with none_changed:
            one = builder.block, halves(key)
    low, high = (builder.phi(values.type) for _ in range(2))
    for block, (first, second) in (each, one):
        low.add_incoming(first, block)
        high.add_incoming(second, block)
    values = builder.xor(values, low)
    for shift, factor in ((16, HASH_FACTORS[0]), (15, HASH_FACTORS[1])):
        values = builder.xor(values, builder.lshr(values, repeated(_I32(shift))))
        values = builder.mul(values, repeated(_I32(factor)))
        values = builder.add(values, high) if shift == 16 else values
    return builder.xor(values, builder.lshr(values, repeated(_I32(16))))


@intrinsic
def hash_16(typing_context, keys, address):
    """Writes the variates of the 16 uint32 at ``address`` in their place."""

    def codegen(context, builder, signature, args):
        _store_all(builder, _hashed(builder, *args), args[1])
        return context.get_dummy_value()

    return types.void(_KEYS, types.int64), codegen


def _following(builder, first):
    """16 int32 that follow each other."""
    return builder.add(ir.Constant(ir.VectorType(_I32, 16), [*range(16)]), _repeated(builder, first, 16, _I32))


def _store_chosen(context, builder, chosen, values, target, first=None, places=None):
    """Writes those of 16 int32 that are chosen, and their places, from ``first`` on, in order; room for 16 is written to."""
    kind = values.type
    if "+avx512f" in context.codegen().magic_tuple()[2].split(","):
        function = ir.FunctionType(kind, [kind, kind, chosen.type])
        compress = cgutils.get_or_insert_function(builder.module, function, "llvm.x86.avx512.mask.compress.v16i32")
        _store_all(builder, builder.call(compress, [values, ir.Constant(kind, None), chosen]), target)
        if first is not None:
            _store_all(builder, builder.call(compress, [_following(builder, first), ir.Constant(kind, None), chosen]), places)
        return
    source = builder.ptrtoint(cgutils.alloca_once_value(builder, values), _I64)
    bits = cgutils.alloca_once_value(builder, builder.zext(builder.bitcast(chosen, ir.IntType(16)), _I64))
    count, four, done = cgutils.alloca_once_value(builder, _I64(0)), builder.append_basic_block(), builder.append_basic_block()
    builder.branch(four)
    builder.position_at_end(four)
    for _ in range(4):  # mostly there are no more: then no jump depends on how many there are
        left, number = builder.load(bits), builder.load(count)
        lane = builder.cttz(builder.or_(left, _I64(1 << 15)), ir.IntType(1)(1))
        builder.store(builder.load(_element(builder, _I32, source, lane)), _element(builder, _I32, target, number))
        if first is not None:
            builder.store(builder.add(first, builder.trunc(lane, _I32)), _element(builder, _I32, places, number))
        builder.store(builder.add(number, builder.zext(builder.icmp_unsigned("!=", left, _I64(0)), _I64)), count)
        builder.store(builder.and_(left, builder.sub(left, _I64(1))), bits)
    builder.cbranch(builder.icmp_unsigned("!=", builder.load(bits), _I64(0)), four, done)
    builder.position_at_end(done)


@intrinsic
def store_chosen(typing_context, bits, source, target):
    """Writes those of the 16 int32 at ``source`` that are chosen by the lowest bits of a uint64, in order, with anything behind them."""

    def codegen(context, builder, signature, args):
        bits, source, target = args
        chosen = builder.bitcast(builder.trunc(bits, ir.IntType(16)), ir.VectorType(ir.IntType(1), 16))
        _store_chosen(context, builder, chosen, _load_16(builder, source, _I32), target)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.int64), codegen


@intrinsic
def store_addresses(typing_context, base, shift, source, target):
    """Writes the int64 addresses of elements of ``1 << shift`` bytes, from ``base`` on, whose 8 numbers are int32 at ``source``."""

    def codegen(context, builder, signature, args):
        base, shift, source, target = args
        numbers = builder.load(builder.inttoptr(source, ir.VectorType(_I32, 8).as_pointer()), align=4)
        offsets = builder.shl(builder.zext(numbers, ir.VectorType(_I64, 8)), _repeated(builder, shift, 8))
        _store_all(builder, builder.add(offsets, _repeated(builder, base, 8)), target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def fill_line(typing_context, number, target):
    """Writes an int64 eight times to ``target``."""

    def codegen(context, builder, signature, args):
        _store_all(builder, _repeated(builder, args[0], 8), args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def keep_below(typing_context, keys, source, bound, count, place, ranks, places):
    """Keeps the variates of the 16 uint32 at ``source`` that are below a bound, and their places, the first of which is ``place``.

    They are written to the addresses ``ranks`` and ``places``, as 16 int32 each, with anything behind them. At the addresses ``bound`` and
    ``count`` are the bound and the number of places that there are, uint32 and int32. Returns how many are kept.
    """

    def codegen(context, builder, signature, args):
        keys, source, bound, count, place, ranks, places = args
        values = _hashed(builder, keys, source)
        bound, count = (_repeated(builder, builder.load(_element(builder, _I32, at, _I64(0))), 16, _I32) for at in (bound, count))
        first = builder.trunc(place, _I32)
        chosen = builder.and_(builder.icmp_unsigned("<", values, bound), builder.icmp_signed("<", _following(builder, first), count))
        _store_chosen(context, builder, chosen, values, ranks, first, places)
        return builder.ctpop(builder.zext(builder.bitcast(chosen, ir.IntType(16)), _I64))

    return types.int64(_KEYS, *[types.int64] * 6), codegen


def _mask_below(builder, values, bound):
    bits = builder.icmp_unsigned("<", values, _repeated(builder, builder.trunc(bound, _I32), 16, _I32))
    return builder.zext(builder.bitcast(bits, ir.IntType(16)), _I64)


@intrinsic
def mask_below(typing_context, address, bound):
    """A bit for each of the 16 uint32 at ``address``, from the lowest on: whether it is below ``bound``, itself one of 32 bits."""

    def codegen(context, builder, signature, args):
        return _mask_below(builder, _load_16(builder, args[0], _I32), args[1])

    return types.uint64(types.int64, types.uint64), codegen


@intrinsic
def smallest_16(typing_context, address, ranks, groups, count):
    """A bit for each of the 16 uint32 at ``address``: whether fewer than ``count`` of the ``groups`` times 16 at ``ranks`` are smaller."""

    def codegen(context, builder, signature, args):
        kind, (address, ranks, groups, count) = ir.VectorType(_I32, 16), args
        values, smaller = _load_16(builder, address, _I32), cgutils.alloca_once_value(builder, ir.Constant(kind, None))
        with cgutils.for_range(builder, groups) as loop:
            number = builder.load(smaller)
            for i in range(16):
                at = _element(builder, _I32, ranks, builder.add(builder.mul(loop.index, _I64(16)), _I64(i)))
                # A vector of one: LLVM takes a number that is repeated by way of a register, and this from memory.
                one = builder.load(builder.bitcast(at, ir.VectorType(_I32, 1).as_pointer()), align=4)
                other = builder.shuffle_vector(one, one, ir.Constant(kind, None))
                number = builder.add(number, builder.zext(builder.icmp_unsigned("<", other, values), kind))
            builder.store(number, smaller)
        return _mask_below(builder, builder.load(smaller), count)

    return types.uint64(*[types.int64] * 4), codegen


@intrinsic
def floyd_16(typing_context, drawn, stride, keys, degrees, index, count):
    """Draw ``index`` of Floyd's samples of ``count`` positions, of 16 nodes, see ``passes.pick_uniform``.

    ``keys`` and ``degrees`` are addresses of 16 int64; the draws of one number are at ``drawn``, ``stride`` bytes behind those before.
    """

    def codegen(context, builder, signature, args):
        drawn, stride, keys, degrees, index, count = args

        def draws(row):
            return builder.add(drawn, builder.mul(row, stride))

        number = builder.mul(builder.add(index, _I64(1)), _I64(GOLDEN))
        random = _mixed(builder, builder.add(_load_16(builder, keys), _repeated(builder, number, 16)))
        last = builder.add(_load_16(builder, degrees), _repeated(builder, builder.sub(index, count), 16))
        picks = _multiplied_high(builder, random, builder.add(last, _repeated(builder, _I64(1), 16)))
        repeated = cgutils.alloca_once_value(builder, ir.Constant(ir.VectorType(ir.IntType(1), 16), None))
        with cgutils.for_range(builder, index) as loop:
            same = builder.icmp_signed("==", _load_16(builder, draws(loop.index)), picks)
            builder.store(builder.or_(builder.load(repeated), same), repeated)
        picks = builder.select(builder.load(repeated), last, picks)
        _store_all(builder, picks, draws(index))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


@intrinsic
def num_bits(typing_context, mask):
    """The number of bits of a uint64 that are set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@intrinsic
def first_bit(typing_context, mask):
    """The number of the lowest bit that is set; of none that is set, anything."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(args[0], ir.IntType(1)(1))


@intrinsic
def float_at(typing_context, base, index):
    """Element ``index`` of the float32 at the address ``base``."""
    return _read_element(_F32, types.float32)


@intrinsic
def set_float(typing_context, base, index, value):
    """Writes element ``index`` of the float32 at the address ``base``."""

    def codegen(context, builder, signature, args):
        builder.store(args[2], _element(builder, _F32, *args[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def either(typing_context, condition, a, b):
    """``a`` where the condition holds, or ``b``, by a condition that cannot be predicted: never a jump."""

    def codegen(context, builder, signature, args):
        chosen = builder.select(*args)
        chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
        return chosen

    return types.int64(types.boolean, types.int64, types.int64), codegen


@intrinsic
def multiply_high(typing_context, a, b):
    """The upper 64 bits of the 128-bit product of two uint64."""

    def codegen(context, builder, signature, args):
        product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
        return builder.trunc(builder.lshr(product, _I128(64)), _I64)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def call_system(typing_context, function, first, second, third, fourth, fifth, sixth):
    """Calls a function of the C library by its address, with integers; one that takes fewer of them leaves the others in their registers.

    Also for functions of variable arguments, where the system passes these as it passes all others (it does on Linux).
    """

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I64, [_I64] * 6)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(*[types.int64] * 7), codegen


# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


# Elements of ``ahead`` int64 [9 + 2 K]: the address of the system's ``madvise``, 0 where nothing is asked for; the bytes of a page; the
# number of rows that are asked for before the first of them is read; the advice by which the system counts pages as used, or 0; and how
# rows are copied, see ``gnnkit.kernels.row_copies``. Then come the pages that were asked for lately, by their number modulo K, a power
# of two, and those that were used; threads share them, and may miss each other's.
MADVISE, PAGE, WINDOW, POPULATE, VECTORS, ROWS_AHEAD, STREAMED_FROM, INTO_FIRST, LINES_INTO_FIRST, LATELY = range(10)

# MADV_WILLNEED on every system that has ``madvise``.
_WILL_NEED = 3


@helper
def asks(ahead: NDArray[np.int64]) -> bool:
    """Whether anything is asked for."""
    return ahead[MADVISE] != 0


@helper
def _advise(ahead: NDArray[np.int64], lately: int, kept: int, address: int, nbytes: int, advice: int) -> None:
    page = ahead[PAGE]
    first, last = address // page, (address + nbytes - 1) // page
    place, other = lately + (first & (kept - 1)), lately + (last & (kept - 1))
    if ahead[place] != first or ahead[other] != last:
        ahead[place], ahead[other] = first, last
        call_system(ahead[MADVISE], first * page, (last - first + 1) * page, advice, 0, 0, 0)


@helper
def ask(ahead: NDArray[np.int64], address: int, nbytes: int) -> None:
    """Asks for the pages of some bytes, and does not wait for them; not again for one that was asked for lately.

    It is advice: whatever the system answers, the pages are there when they are read. A call for each page: one of ``process_madvise`` for
    a thousand of them saves 0.14 of the 0.5 us that a page in memory costs, and of the 4.4 us of one that is read nothing that can be
    measured; and it needs a privilege on many systems.
    """
    _advise(ahead, LATELY, (ahead.size - LATELY) // 2, address, nbytes, _WILL_NEED)


@helper
def use(ahead: NDArray[np.int64], address: int, nbytes: int) -> None:
    """Waits for the pages of some bytes that are about to be read, and has the system count them as used; not again if it has lately.

    Linux from 6.3 on does not look at what is read through a mapping that is read at random, and would give up the pages first that came
    first, however often they are read.
    """
    if ahead[POPULATE] != 0:
        kept = (ahead.size - LATELY) // 2
        _advise(ahead, LATELY + kept, kept, address, nbytes, ahead[POPULATE])
