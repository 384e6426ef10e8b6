"""How the loops of a kernel become threads of a device, and which of them are unrolled.

Unrolling repeats the text of a kernel, and compilers take longer than in proportion: tinygrad's own
choices cost minutes for a kernel of a hundred operators. Here they have a budget.
"""

import math
from typing import Any, cast

from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler

from torch_tiny.uops import AxisType, GroupOp, Ops, Renderer, UOp

_MOST_TEXT = 512  # operators, after unrolling
_MANY_OUTPUTS = 4096  # enough threads, so that each can have several
_FEW_OUTPUTS = 2048  # not enough of them
_TILE = 4
_TOGETHER = 16  # threads that share a reduction
_LONG = 64
_GROUP = 128  # threads
_SIZES = (64, 32, 16, 8, 4, 3, 2)


def arranged(sink: UOp, renderer: Renderer, name: str) -> UOp:
    """The loops around the store as threads, in groups as large as the sizes allow."""
    loops: Any = Scheduler(sink, renderer)
    loops.convert_loop_to_global()
    if not any(u.op is Ops.STAGE for u in sink.toposort()):
        outputs = math.prod(loops.output_shape)
        if outputs > _FEW_OUTPUTS or not _share_reduction(loops):
            if outputs >= _MANY_OUTPUTS:
                _unroll(loops)
            _group(loops)
    return cast(UOp, loops.get_optimized_ast(name_override=name))


def _share_reduction(loops: Any) -> bool:
    for number, axis in enumerate(loops.axes_of(AxisType.REDUCE)):
        if loops.full_shape[axis] >= _LONG:
            try:
                loops.apply_opt(Opt(OptOps.GROUPTOP, number, _TOGETHER))
            except KernelOptError:
                continue
            return True
    return False


def _unroll(loops: Any) -> None:
    """Tiles, which load once what does not depend on a loop; else vectors of the last loop."""
    text = sum(u.op in GroupOp.ALU for u in loops.ast.toposort())
    axes = list(reversed(loops.axes_of(AxisType.GLOBAL)))
    if loops.reduceop is None:
        axes = axes[:1]
    for axis in axes:
        loop = loops.rngs[axis]
        pays = loops.reduceop is None or any(
            loop not in load.src[1].toposort() for load in loops.bufs
        )
        fits = loops.full_shape[axis] % _TILE == 0
        if pays and fits and text * loops.upcast_size() * _TILE <= _MOST_TEXT:
            loops.apply_opt(Opt(OptOps.UPCAST, axis, _TILE))


def _group(loops: Any) -> None:
    """The last loops first: their threads read what lies side by side."""
    threads = 1
    for axis in reversed(loops.axes_of(AxisType.GLOBAL)):
        length = loops.full_shape[axis]
        fitting = (n for n in _SIZES if length % n == 0 and threads * n <= _GROUP)
        size = next(fitting, 1)
        if size > 1:
            loops.apply_opt(Opt(OptOps.LOCAL, axis, size))
            threads *= size
