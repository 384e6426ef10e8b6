"""How the loops of a kernel become threads of a device, and which of them are unrolled.

Unrolling repeats the text of a kernel, and compilers take longer than in proportion: tinygrad's own
choices cost minutes for a kernel of a hundred operators. Here they have a budget.
"""

import math
from typing import Any, cast

from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler

from torch_tiny.uops import AxisType, GroupOp, Ops, Renderer, UOp, stride

_MOST_TEXT = 512  # operators, after unrolling
_MANY_OUTPUTS = 4096  # enough threads, so that each can have several
_FEW_OUTPUTS = 2048  # not enough of them
_TILE = 4
_MOST_SUMS = 16  # in the registers of a thread
_TOGETHER = (32, 16)  # threads that share a reduction
_LONG = 64
_GROUP = 128  # threads
_SIZES = (64, 32, 16, 8, 4, 3, 2)
_WIDE = (64, 32, 16)
_ODD = 8  # so many groups, of which the last is not full
_SIDE = 16  # threads along one side of a group that computes a tile


def arranged(sink: UOp, renderer: Renderer, name: str) -> UOp:
    """The loops around the store as threads, in groups as large as the sizes allow."""
    loops: Any = Scheduler(sink, renderer)
    loops.convert_loop_to_global()
    if not sink.op_in_backward_slice_with_self(Ops.STAGE):
        outputs = math.prod(loops.output_shape)
        _pad(loops)
        if not _share_reduction(loops, outputs):
            if outputs >= _MANY_OUTPUTS:
                _unroll(loops)
            _group(loops)
    return cast(UOp, loops.get_optimized_ast(name_override=name))


def _pad(loops: Any) -> None:
    """Long loops of odd sizes become multiples of a group; threads without work do nothing."""
    for axis in loops.axes_of(AxisType.GLOBAL):
        length = loops.full_shape[axis]
        if length >= _ODD * _WIDE[-1] and all(length % n for n in _WIDE):
            size = next(n for n in _WIDE if length >= _ODD * n)
            loops.apply_opt(Opt(OptOps.PADTO, axis, size))


def _share_reduction(loops: Any, outputs: int) -> bool:
    """Rows are read by threads side by side; other reductions are shared if there are few."""
    for number, axis in enumerate(loops.axes_of(AxisType.REDUCE)):
        if loops.full_shape[axis] < _LONG:
            continue
        is_row = _runs_along(loops, loops.rngs[axis])
        if not is_row and outputs > _FEW_OUTPUTS:
            continue
        how = OptOps.GROUP if is_row else OptOps.GROUPTOP
        for threads in _TOGETHER:
            try:
                loops.apply_opt(Opt(how, number, threads))
            except KernelOptError:
                continue
            if outputs > _FEW_OUTPUTS:
                _group(loops, _GROUP // threads)
            return True
    return False


def _runs_along(loops: Any, loop: UOp) -> bool:
    """Whether what is read for each output alone lies side by side along this loop."""
    outer = {loops.rngs[axis] for axis in loops.axes_of(AxisType.GLOBAL)}
    own = [load for load in loops.bufs if {loop, *outer} <= set(load.src[1].toposort())]
    return bool(outer and own) and all(stride(load, loop) == 1 for load in own)


def _unroll(loops: Any) -> None:
    """Tiles, which load once what does not depend on a loop; else vectors of the last loop."""
    outer = [loops.rngs[axis] for axis in reversed(loops.axes_of(AxisType.GLOBAL))]
    if loops.reduceop is not None:
        reads = [load.src[1].toposort() for load in loops.bufs]
        outer = [loop for loop in outer if any(loop not in read for read in reads)]
    elif any(opt.op is OptOps.PADTO for opt in loops.applied_opts):
        return
    else:
        outer = outer[:1]
    # What repeats least comes first: the filters of a convolution, not the places with their tests.
    for loop in sorted(outer, key=lambda loop: _text(loops, loop)):
        axis = loops.rngs.index(loop)
        is_small = loops.upcast_size() < _MOST_SUMS and loops.full_shape[axis] % _TILE == 0
        if is_small and _text(loops, loop) <= _MOST_TEXT:
            loops.apply_opt(Opt(OptOps.UPCAST, axis, _TILE))


def _text(loops: Any, loop: UOp) -> int:
    """Operators of the kernel once this loop, too, is unrolled."""

    def copies(u: UOp) -> int:
        unrolled = [int(r.vmax) + 1 for r in u.ranges if r.arg[-1] is AxisType.UPCAST]
        return math.prod(unrolled) * (_TILE if loop in u.ranges else 1)

    return sum(copies(u) for u in loops.ast.toposort() if u.op in GroupOp.ALU)


def _group(loops: Any, most: int = _GROUP) -> None:
    """The last loops first: their threads read what lies side by side."""
    is_tiled = loops.reduceop is not None and loops.upcast_size() > _TILE
    # Without vectors, neighbours in a tile are loads of their own: long rows of threads share them.
    side = _SIDE if is_tiled and loops.ren.supports_float4 else most
    threads = 1
    for axis in reversed(loops.axes_of(AxisType.GLOBAL)):
        length = loops.full_shape[axis]
        fitting = (n for n in _SIZES if length % n == 0 and n <= side and threads * n <= most)
        size = next(fitting, 1)
        if size > 1:
            loops.apply_opt(Opt(OptOps.LOCAL, axis, size))
            threads *= size
