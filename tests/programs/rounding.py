"""Whether a program's answer hangs on the last digit of something that was rounded.

The oracle plays against itself, with each inexact result rounded anew: to anything between it and
what float64 says, and one unit beyond; a NaN that is computed or cast gets any sign and digits, as
the CPU's kernels for vectors and for single numbers do. Where it differs from itself in the same
statement, no device can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from util import ORACLE

from .lockstep import DifferenceError, LockStep, NotAProgramError

TRIES = 24
_MOVES = {"neg", "copy", "_to_copy", "clone"}
"""What keeps all digits of a number, a NaN's too, unless it casts."""
_EXACT = {"add", "sub", "mul", "div", "sqrt", "reciprocal", *_MOVES}
"""What IEEE defines to the last digit."""
_ABOVE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.float64: torch.float32,
    torch.complex128: torch.complex64,
}
"""In which type to see whether a result is exact: for float64 whether half the digits will do."""
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def hangs_on_rounding(
    lines: Sequence[str],
    difference: DifferenceError,
    more: Callable[[str], dict[str, Any]] = lambda _: {},
) -> bool:
    """Whether the oracle differs from itself in the statement in which the device did.

    `more`: variables of a device, as of `LockStep`.
    """
    statement = str(difference).partition("\n")[0]
    for seed in range(TRIES):
        step = _AgainstItself(seed, more)
        try:
            for line in lines:
                step.do(line)
            step.finish()
        except DifferenceError as own:
            if str(own).partition("\n")[0] == statement:
                return True
        except NotAProgramError:
            return False
        finally:
            step.close()
    return False


class _AgainstItself(LockStep):
    def __init__(self, seed: int, more: Callable[[str], dict[str, Any]]) -> None:
        self._anew = _RoundedAnew(seed)
        self._draws = torch.get_rng_state()
        super().__init__(ORACLE, more)

    def act(self, code: Any) -> Exception | None:
        """With random numbers of its own: each side draws the same ones."""
        others = torch.get_rng_state()
        torch.set_rng_state(self._draws)
        with self._anew:
            error = super().act(code)
        self._draws = torch.get_rng_state()
        torch.set_rng_state(others)
        return error

    def _compare_version(self, name: str, c: torch.Tensor, d: torch.Tensor) -> None:
        """Under a mode writes to lists are not counted."""


class _RoundedAnew(TorchDispatchMode):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        given = [t.dtype for t in _tensors((args, kwargs)) if t.dtype in _ABOVE]
        is_simple = name in _EXACT and not any(dtype.is_complex for dtype in given)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if not given or func.is_view or draws:
            return func(*args, **kwargs)
        exact = None if is_simple else self._exactly(func, args, kwargs)
        result = func(*args, **kwargs)
        if exact is not None:
            for mine, better in zip(_tensors(result), _tensors(exact), strict=False):
                if mine.dtype in _ABOVE and mine.shape == better.shape:
                    self._round(mine, better)
        for mine in _tensors(result):
            if mine.dtype in _ABOVE and not (name in _MOVES and {*given} == {mine.dtype}):
                self._fill_in_nans(mine)
        return result

    def _exactly(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The same in another type; None where there is no such."""
        try:
            given, named = pytree.tree_map(_above, (args, kwargs))
            return func(*given, **named)
        except Exception:  # not in that type
            return None

    def _round(self, mine: torch.Tensor, exact: torch.Tensor) -> None:
        exact = exact.to(mine.dtype if mine.dtype.itemsize > exact.dtype.itemsize else exact.dtype)
        now = mine.to(exact.dtype)
        is_exacter = mine.dtype not in (torch.float64, torch.complex128)
        share = torch.rand(mine.shape, generator=self._generator, dtype=torch.float64)
        share = share.to(mine.device)
        units = self._units(mine)
        anew = now + (exact - now) * share if is_exacter else now
        # The parts of a complex number are exact to its size, not each to its own: z / z may be
        # 1 + 1e-9j in any type.
        step = anew.abs() if mine.is_complex() else anew
        anew = anew + step * units * torch.finfo(mine.dtype).eps
        is_inexact = torch.ones_like(now, dtype=torch.bool) if mine.is_complex() else now != exact
        usable = is_inexact & now.isfinite() & exact.isfinite()
        mine.copy_(torch.where(usable, anew, mine))

    def _fill_in_nans(self, mine: torch.Tensor) -> None:
        """The NaN of this type, the same with a sign, or all digits ones."""
        parts = torch.view_as_real(mine) if mine.is_complex() else mine
        plain = torch.full((), torch.nan, dtype=parts.dtype, device=parts.device)
        digits = _INTEGERS[parts.dtype.itemsize]
        nans = torch.stack([plain, plain.neg()]).view(digits)
        nans = torch.cat([nans, torch.full_like(nans[:1], -1)])
        which = torch.randint(len(nans), parts.shape, generator=self._generator).to(parts.device)
        bits = parts.view(digits)
        bits.copy_(torch.where(parts.isnan(), nans[which], bits))

    def _units(self, like: torch.Tensor) -> torch.Tensor:
        """-1, 0 or 1 for each element, and for each part of a complex one."""
        units = torch.randint(-1, 2, like.shape, generator=self._generator).to(like.device)
        if not like.is_complex():
            return units
        return torch.complex(units.double(), self._units(like.real).double())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _above(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(_ABOVE.get(leaf.dtype, leaf.dtype), copy=True)
    return _ABOVE.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf
