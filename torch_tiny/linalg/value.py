"""Numbers of a kernel: real ones, and complex ones as pairs of them."""

from dataclasses import dataclass

from torch_tiny.uops import DType, Ops, UOp, dtypes


@dataclass(frozen=True)
class Value:
    """A number of the kernel. Arithmetic with Python numbers takes the number's type from it."""

    uop: UOp

    @property
    def dtype(self) -> DType:
        return self.uop.dtype

    def __add__(self, other: "Operand") -> "Value":
        return self if _is(other, 0) else self._with(Ops.ADD, other)

    __radd__ = __add__

    def __sub__(self, other: "Operand") -> "Value":
        if self.dtype == dtypes.int32:  # tinygrad bounds sums and products
            return self + (-other if isinstance(other, int) else other * -1)
        return self._with(Ops.SUB, other)

    def __rsub__(self, other: "Operand") -> "Value":
        if self.dtype == dtypes.int32:
            return self * -1 + other
        return self._made(other)._with(Ops.SUB, self)

    def __mul__(self, other: "Operand") -> "Value":
        return self if _is(other, 1) else self._with(Ops.MUL, other)

    __rmul__ = __mul__

    def __truediv__(self, other: "Operand") -> "Value":
        return self._with(Ops.FDIV, other)

    def __rtruediv__(self, other: "Operand") -> "Value":
        return self._made(other) / self

    def __floordiv__(self, other: int) -> "Value":
        """Of what is not negative."""
        return self if other == 1 else self._with(Ops.CDIV, other)

    def __mod__(self, other: int) -> "Value":
        return self._with(Ops.CMOD, other)

    def __neg__(self) -> "Value":
        return Value(UOp(Ops.NEG, self.dtype, (self.uop,)))

    def __lt__(self, other: "Operand") -> "Value":
        return self._with(Ops.CMPLT, other, dtypes.bool)

    def __gt__(self, other: "Operand") -> "Value":
        return self._made(other)._with(Ops.CMPLT, self, dtypes.bool)

    def differs(self, other: "Operand") -> "Value":
        return self._with(Ops.CMPNE, other, dtypes.bool)

    def __and__(self, other: "Value") -> "Value":
        return self._with(Ops.AND, other)

    def __or__(self, other: "Value") -> "Value":
        return self._with(Ops.OR, other)

    def where(self, yes: "Operand", no: "Operand") -> "Value":
        """For a condition: one of two numbers."""
        if isinstance(yes, Pair) or isinstance(no, Pair):
            like = yes if isinstance(yes, Pair) else no
            assert isinstance(like, Pair)
            one, other = like._made(yes), like._made(no)
            return pair(self.where(one.re, other.re), self.where(one.im, other.im))
        if isinstance(yes, Value):
            a, b = yes, yes._made(no)
        else:
            assert isinstance(no, Value)
            a, b = no._made(yes), no
        return Value(UOp(Ops.WHERE, a.dtype, (self.uop, a.uop, b.uop)))

    def abs(self) -> "Value":
        return (self < 0).where(-self, self)

    @property
    def re(self) -> "Value":
        return self

    @property
    def im(self) -> "Value":
        return self._made(0)

    def conj(self) -> "Value":
        return self

    def squared(self) -> "Value":
        """Of the absolute value."""
        return self * self

    def size(self) -> "Value":
        """What LAPACK takes for the absolute value when it looks for the largest."""
        return self.abs()

    def max(self, other: "Operand") -> "Value":
        return (self < other).where(other, self)

    def sqrt(self) -> "Value":
        return Value(UOp(Ops.SQRT, self.dtype, (self.uop,)))

    def to(self, dtype: DType) -> "Value":
        return self if dtype == self.dtype else Value(self.uop.cast(dtype))

    def _with(self, op: Ops, other: "Operand", dtype: DType | None = None) -> "Value":
        right = self._made(other)
        assert right.dtype == self.dtype, (op, self.dtype, right.dtype)
        return Value(UOp(op, dtype or self.dtype, (self.uop, right.uop)))

    def _made(self, other: "Operand") -> "Value":
        return other if isinstance(other, Value) else constant(other, self.dtype)


@dataclass(frozen=True)
class Pair(Value):
    """A complex number: a real one, and its imaginary part."""

    imaginary: Value

    @property
    def re(self) -> Value:
        return Value(self.uop)

    @property
    def im(self) -> Value:
        return self.imaginary

    def __add__(self, other: "Operand") -> "Pair":
        b = self._made(other)
        return pair(self.re + b.re, self.im + b.im)

    # Python asks these before a real number's own, since they are a subclass's and not inherited.
    __radd__ = __add__

    def __sub__(self, other: "Operand") -> "Pair":
        b = self._made(other)
        return pair(self.re - b.re, self.im - b.im)

    def __rsub__(self, other: "Operand") -> "Pair":
        return -self + other

    def __mul__(self, other: "Operand") -> "Pair":
        if not isinstance(other, Pair):
            return pair(self.re * other, self.im * other)
        return pair(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    __rmul__ = __mul__

    def __truediv__(self, other: "Operand") -> "Pair":
        if not isinstance(other, Pair):
            return pair(self.re / other, self.im / other)
        # Scaled, so that the squares of large numbers do not overflow.
        scale = other.re.abs().max(other.im.abs())
        c, d = other.re / scale, other.im / scale
        a, b = self.re / scale, self.im / scale
        norm = c * c + d * d
        return pair((a * c + b * d) / norm, (b * c - a * d) / norm)

    def __rtruediv__(self, other: "Operand") -> "Pair":
        return self._made(other) / self

    def __neg__(self) -> "Pair":
        return pair(-self.re, -self.im)

    def differs(self, other: "Operand") -> Value:
        b = self._made(other)
        return self.re.differs(b.re) | self.im.differs(b.im)

    def conj(self) -> "Pair":
        return pair(self.re, -self.im)

    def squared(self) -> Value:
        return self.re * self.re + self.im * self.im

    def size(self) -> Value:
        return self.re.abs() + self.im.abs()

    def abs(self) -> Value:
        scale = self.re.abs().max(self.im.abs())
        usable = (scale > 0).where(scale, 1)
        return (self / usable).squared().sqrt() * usable

    def _made(self, other: "Operand") -> "Pair":
        if isinstance(other, Pair):
            return other
        real = self.re._made(other)
        return pair(real, constant(0, real.dtype))


def pair(re: Value, im: Value) -> Pair:
    return Pair(re.uop, im)


Operand = Value | int | float
Index = Value | int
Span = tuple[Index, Index]


def constant(number: float, dtype: DType) -> Value:
    return Value(UOp.const(number, dtype))


def index(number: Operand) -> Value:
    return number if isinstance(number, Value) else constant(number, dtypes.int32)


def unit(i: Value, j: Value, dtype: DType) -> Value:
    """The element of the identity."""
    return i.differs(j).where(0, constant(1, dtype))


def _is(operand: Operand, number: int) -> bool:
    return not isinstance(operand, Value) and operand == number
