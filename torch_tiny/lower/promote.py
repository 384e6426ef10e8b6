"""Which dtype PyTorch computes in, and numbers as UOps."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch_tiny.lower.conditions import require
from torch_tiny.uops import DType, UOp, constant, dtypes


class NoLowering(Exception):  # noqa: N818  (an answer, not an error)
    """This call cannot be expressed in UOps."""

    def __init__(self, why: str, op: str = "") -> None:
        super().__init__(f"{op}: {why}" if op else why)
        self.why = why


@dataclass(frozen=True)
class Lifted:
    """A number whose value is an input of the compiled code: a UOp of shape ()."""

    uop: UOp
    kind: type[int] | type[float]


Number = bool | int | float | Lifted
Operand = UOp | Number

HALVES = (dtypes.float16, dtypes.bfloat16)
_INTS = (dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
_FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
LARGEST = {
    dtypes.float16: 65504.0,
    dtypes.bfloat16: 3.3895313892515355e38,
    dtypes.float32: 3.4028234663852886e38,
    dtypes.float64: 1.7976931348623157e308,
}
_RANK = {dtypes.bool: 0, **dict.fromkeys(_INTS, 1), **dict.fromkeys(_FLOATS, 2)}


def known(value: Any, what: str) -> Any:
    """A number that decides what code is made, so it must be there when compiling."""
    if isinstance(value, Lifted):
        raise NoLowering(f"needs the value of {what}")
    return value


def join(a: DType, b: DType) -> DType:
    """The dtype of PyTorch's promotion table."""
    if a == b:
        return a
    if _RANK[a] != _RANK[b]:
        return a if _RANK[a] > _RANK[b] else b
    if dtypes.uint8 in (a, b):
        return dtypes.int16 if dtypes.int8 in (a, b) else (a if b == dtypes.uint8 else b)
    if {a, b} == set(HALVES):
        return dtypes.float32
    return a if a.itemsize > b.itemsize else b


def result_dtype(*operands: Operand) -> DType:
    """As torch.result_type: tensors decide, then 0-dim tensors, then numbers, by category."""
    levels: list[DType | None] = [None, None, None]
    for operand in operands:
        level, dtype = _level(operand)
        before = levels[level]
        levels[level] = dtype if before is None else join(before, dtype)
    found = [dtype for dtype in levels if dtype is not None]
    return max(found, key=lambda dtype: _RANK[dtype])  # of equals the first


_default: ContextVar[DType] = ContextVar("default", default=dtypes.float32)


def default_dtype() -> DType:
    """What floats are where nothing else says so, as torch.get_default_dtype()."""
    return _default.get()


@contextmanager
def under_default(dtype: DType) -> Iterator[None]:
    """Calls that were recorded under this default type are lowered inside."""
    token = _default.set(dtype)
    try:
        yield
    finally:
        _default.reset(token)


def float_dtype(dtype: DType) -> DType:
    """What functions such as exp give for integers."""
    return dtype if is_float(dtype) else default_dtype()


def math_dtype(dtype: DType) -> DType:
    """Half precision is computed in float32 and rounded once."""
    return dtypes.float32 if dtype in HALVES else dtype


def is_float(dtype: DType) -> bool:
    return dtype in _FLOATS


def as_uop(operand: Operand, dtype: DType) -> UOp:
    """A tensor or number in a dtype."""
    if isinstance(operand, UOp):
        return cast(operand, dtype)
    if isinstance(operand, Lifted):
        return cast(operand.uop, dtype)
    return constant(wrapped(operand, dtype), dtype)


def filling(operand: Operand, dtype: DType) -> UOp:
    """A number that fills a tensor of this dtype: one out of its range is an error."""
    if isinstance(operand, UOp) and dtypes.bool not in (operand.dtype, dtype):
        low, high = _range_of(dtype)
        least, most = _range_of(operand.dtype)
        if not low <= least <= most <= high or is_float(operand.dtype) > is_float(dtype):
            require(_is_within(operand, low, high, dtype))
    return as_uop(operand, dtype)


def _range_of(dtype: DType) -> tuple[int, int]:
    top = int(LARGEST[dtype] if is_float(dtype) else dtype.max)
    return (-top if is_float(dtype) else int(dtype.min)), top


def _is_within(number: UOp, low: int, high: int, dtype: DType) -> UOp:
    if not is_float(number.dtype):
        wide = number.cast(dtypes.int64)
        least = -high if low == 0 else low  # a negative number may wrap
        return ((wide < least) | (wide > high)).logical_not()
    x = number.cast(math_dtype(number.dtype))
    outside = (x < float(low)) | (x > float(high))
    outside = outside & (x * 0.0).eq(0) if is_float(dtype) else outside | x.ne(x)
    return outside.logical_not()


def cast(x: UOp, dtype: DType) -> UOp:
    """As PyTorch converts: to bool by comparing with 0, to small integers by larger ones."""
    if x.dtype == dtype:
        return x
    if dtype == dtypes.bool:
        return x.ne(0)
    if is_float(x.dtype) and dtype in _INTS and dtype.itemsize < 4:
        # C leaves a float out of range of a small integer undefined; this is what compilers do.
        return x.cast(dtypes.int64 if dtype == dtypes.uint8 else dtypes.int32).cast(dtype)
    if x.dtype == dtypes.float64 and dtype in HALVES:
        return x.cast(dtypes.float32).cast(dtype)
    return x.cast(dtype)


def wrapped(number: bool | int | float, dtype: DType) -> bool | int | float:
    """A Python number as the dtype holds it."""
    if dtype == dtypes.bool:
        return bool(number)
    if is_float(dtype):
        return float(number)
    bits = 8 * dtype.itemsize
    value = int(number) & ((1 << bits) - 1)
    signed = dtype != dtypes.uint8 and value >> (bits - 1)
    return value - (1 << bits) if signed else value


def elementwise(
    function: Callable[..., UOp],
    *operands: Operand,
    result: DType | None = None,
    rounded: bool = False,
) -> UOp:
    """`function` of operands promoted together; computed in float32 where the result is half.

    `rounded`: numbers and 0-dim tensors become half first, as in most of the CPU's kernels.
    """
    dtype = result_dtype(*operands)
    return cast(function(*_promoted(operands, dtype, rounded)), result or dtype)


def elementwise_float(
    function: Callable[..., UOp], *operands: Operand, rounded: bool = False
) -> UOp:
    """The same for functions whose result is always a float."""
    dtype = float_dtype(result_dtype(*operands))
    return cast(function(*_promoted(operands, dtype, rounded)), dtype)


def mapped(function: Callable[..., UOp]) -> Callable[..., UOp]:
    """The rule of an operator whose arguments are all operands."""
    return lambda *operands: elementwise(function, *operands)


def _promoted(operands: Sequence[Operand], dtype: DType, rounded: bool) -> list[UOp]:
    wide = math_dtype(dtype)
    return [as_uop(as_uop(x, dtype) if rounded else x, wide) for x in operands]


def _level(operand: Operand) -> tuple[int, DType]:
    """How much an operand has to say (0 the most), and its dtype."""
    if isinstance(operand, UOp):
        return (0 if operand.ndim else 1), operand.dtype
    kind = operand.kind if isinstance(operand, Lifted) else type(operand)
    dtype = {bool: dtypes.bool, int: dtypes.int64, float: default_dtype()}.get(kind)
    if dtype is None:
        raise NoLowering(f"no promotion for {kind.__name__}")
    return 2, dtype
