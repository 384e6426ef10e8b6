"""One program on two devices: after every statement the oracle and the device must agree."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import torch
from util import DEVICE, ORACLE

_SIGN_OF_ZERO = re.compile(r"(?<=[\[(,])[-+]?(?=0\.0*[-+])|[-+](?=0\.0*j)")


class DifferenceError(AssertionError):
    """The device did not do what the oracle did."""


class NotAProgramError(Exception):
    """A statement uses a name that was never made; only reduced programs have that."""


def check(text: str, device: str = DEVICE) -> None:
    """Run a program given as text in lock step; raises where the device differs."""
    run([line.strip() for line in text.strip().splitlines()], device)


def run(lines: list[str], device: str = DEVICE, times: int = 2) -> None:
    """Twice, since the device may run a call at once that it has never seen, and record it then."""
    for _ in range(times):
        step = LockStep(device)
        try:
            for line in lines:
                step.do(line)
            step.finish()
        finally:
            step.close()


class LockStep:
    """Two sets of variables, one with `device` the oracle; every statement runs in both."""

    def __init__(self, device: str, more: Callable[[str], dict[str, Any]] = lambda _: {}) -> None:
        """`more`: variables of a device beside, or in place of, the usual ones."""
        self._more = more
        self.device = device
        self.oracle, self.dev = self._variables(ORACLE), self._variables(device)
        self.pending: list[BaseException] = []  # raised by the oracle, not yet by the device
        self.errors_were_late = False
        self.saw_gradients = False
        self.versions: dict[str, int] = {}  # where the oracle's version counter is ahead

    def do(self, line: str) -> None:
        if self.pending and _has_steps(line):  # the first must not run twice
            self.do("synchronize()")
        code = compile(line, "<program>", "exec")
        self.saw_gradients |= "grad(" in line or "backward" in line
        self.oracle["r"] = self.dev["r"] = None
        expected, got = self.expect(line, code), self.act(code)
        if isinstance(expected, NameError):
            raise NotAProgramError(line)
        if got and self._is_late(got):
            self.pending.clear()  # the first error of a run stands for those after it
            got = self.act(code)  # what a late error interrupts has not run
        if expected and not got:
            self.pending.append(expected)
            self.errors_were_late = True
        elif type(expected) is not type(got):
            wanted = describe(expected)
            raise DifferenceError(f"{line}\noracle: {wanted}\ndevice: {describe(got)}")
        self._forget_what_has_no_value(line)
        self._compare(line, metadata)
        if line.startswith(("r = ", "synchronize()")) and not expected:
            same_value(line, self.oracle["r"], self.dev["r"])
            self.finish()

    def expect(self, _: str, code: Any) -> Exception | None:
        """Run a statement on the oracle."""
        return attempt(code, self.oracle)

    def act(self, code: Any) -> Exception | None:
        """Run a statement on the device."""
        return attempt(code, self.dev)

    def finish(self) -> None:
        """By now an error has been raised, and every tensor is as on the oracle."""
        if self.pending:
            error = self.act(compile("synchronize()", "<program>", "exec"))
            if not (error and self._is_late(error)):
                lost = describe(self.pending[0])
                raise DifferenceError(f"lost: {lost}\ndevice: {describe(error)}")
            self.pending.clear()
        self._compare("read", values)

    def close(self) -> None:
        """Drop what is left of a program, with its errors; a hook that sees all names holds it."""
        self.oracle.clear()
        self.dev.clear()
        code = compile("limit(4096); synchronize()", "<close>", "exec")
        attempt(code, self._variables(self.device))

    def _variables(self, device: str) -> dict[str, Any]:
        return {**variables(device), **self._more(device)}

    def _is_late(self, error: BaseException) -> bool:
        """Whether this is one of the oracle's errors that were still to come."""
        return any(
            type(one) is type(error) and first_line(one) in str(error) for one in self.pending
        )

    def _forget_what_has_no_value(self, line: str) -> None:
        for name in self.dev.keys() - self.oracle.keys():
            del self.dev[name]
        for name in [n for n, v in self.oracle.items() if v is None and n != "r"]:
            if self.dev[name] is not None:
                raise DifferenceError(f"{line}\n{name} is None on the oracle only")
            del self.oracle[name], self.dev[name]

    def _compare(self, line: str, compare: Callable[..., None]) -> None:
        for name, value in list(self.oracle.items()):
            if name.startswith("t") and isinstance(value, torch.Tensor):
                try:
                    compare(name, value, self.dev[name], self.saw_gradients)
                    self._compare_version(name, value, self.dev[name])
                except AssertionError as error:
                    raise DifferenceError(f"{line}\n{error}") from None
                except Exception as error:
                    raise DifferenceError(f"{line}\nreading {name}: {describe(error)}") from None

    def _compare_version(self, name: str, c: torch.Tensor, d: torch.Tensor) -> None:
        """A write that fails late was counted; gradients may be added up in place or not."""
        if self.errors_were_late:
            return
        if self.saw_gradients:
            self.versions.setdefault(name, c._version - d._version)
        if c._version - d._version != self.versions.get(name, 0):
            raise AssertionError(f"{name}: version {c._version} on the oracle, not {d._version}")


def _has_steps(line: str) -> bool:
    """Whether a late error could interrupt it half way: statements, or an assignment to two."""
    return ";" in line or "], t" in line.partition(" = ")[0]


def variables(device: str) -> dict[str, Any]:
    is_tiny = device.startswith("tiny")

    def synchronize() -> None:
        if is_tiny:
            torch.tiny.synchronize(device)

    def seed(number: int) -> None:
        """torch.manual_seed seeds the device too, which would then raise the device's errors."""
        if is_tiny:
            torch.manual_seed(number)
        elif device.startswith("cuda"):
            torch.cuda.manual_seed(number)
        else:
            torch.default_generator.manual_seed(number)

    def limit(calls: int) -> None:
        """Run what was recorded after so many calls, wherever that falls."""
        if is_tiny:
            torch_tiny = importlib.import_module("torch_tiny")
            torch_tiny._C.set_limits(calls, 4 << 30)

    def text(t: torch.Tensor) -> str:
        shown = "".join(repr(t.detach()).split()).replace(f",device='{t.device}'", "")
        # -z has zeros of one sign in the CPU's kernel for vectors, of another in what is left over.
        return _SIGN_OF_ZERO.sub("+", shown) if t.is_complex() else shown

    return {
        "torch": torch,
        "device": device,
        "seeded": seeded,
        "indices": indices,
        "seed": seed,
        "synchronize": synchronize,
        "limit": limit,
        "text": text,
    }


def seeded(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of small halves, exact in every dtype."""
    gen = torch.Generator().manual_seed(seed)
    whole = torch.randint(-6, 7, shape, generator=gen)
    if dtype.is_complex:
        other = torch.randint(-6, 7, shape, generator=gen)
        return torch.complex(whole / 2, other / 2).to(dtype)
    return (whole / 2 if dtype.is_floating_point else whole).to(dtype)


def indices(seed: int, shape: tuple[int, ...], size: int) -> torch.Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(seed))


def attempt(code: Any, env: dict[str, Any]) -> Exception | None:
    try:
        exec(code, env)
    except Exception as error:
        return error.with_traceback(None)
    finally:
        env.pop("__builtins__", None)
    return None


def describe(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:1500] if error else "no error"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def metadata(name: str, c: torch.Tensor, d: torch.Tensor, gradients: bool) -> None:
    """Everything that a tensor knows without its data; asking must not run anything."""
    wanted, found = facts(c, gradients), facts(d, gradients)
    if wanted != found:
        wrong = {k: (v, found[k]) for k, v in wanted.items() if found[k] != v}
        raise AssertionError(f"{name}: (oracle, device) {wrong}")


def facts(t: torch.Tensor, gradients: bool) -> dict[str, Any]:
    """Whether a gradient is kept or copied depends on autograd's threads, and with that the strides
    of its dimensions of one element."""
    stride = [s for s, n in zip(t.stride(), t.shape, strict=True) if n != 1 or not gradients]
    return {
        "shape": t.shape,
        "stride": stride,
        "contiguous": t.is_contiguous(),
        "offset": t.storage_offset(),
        "dtype": t.dtype,
        "is_view": t._is_view(),
        "conj": t.is_conj(),
        "neg": t.is_neg(),
        "history": history(t),
    }


def history(t: torch.Tensor) -> str:
    """Where it came from; x[i] = number is a fill on the CPU and a copy on any other device."""
    try:
        name = type(t.grad_fn).__name__.replace("FillBackward3", "CopyBackwards")
        return f"{t.requires_grad} {t.is_leaf} {name}"
    except RuntimeError as error:  # a view of several whose base was written to
        return describe(error)


def values(name: str, c: torch.Tensor, d: torch.Tensor, _: bool) -> None:
    wanted, found = c.untyped_storage().nbytes(), d.untyped_storage().nbytes()
    if wanted != found:
        raise AssertionError(f"{name}: a storage of {found} bytes, not {wanted}")
    c, d = c.data.cpu(), d.data.cpu()
    if not torch.equal(c, d):
        torch.testing.assert_close(
            d, c, equal_nan=True, msg=lambda m: f"{name}: {m}\noracle {c}\ndevice {d}"
        )


def same_value(line: str, c: Any, d: Any) -> None:
    try:
        if isinstance(c, (str, bool, type(None))):
            if c != d:
                raise AssertionError(f"{c!r} != {d!r}")
        else:
            wanted, found = torch.as_tensor(c).cpu(), torch.as_tensor(d).cpu()
            torch.testing.assert_close(found, wanted, equal_nan=True)
    except AssertionError as error:
        raise DifferenceError(f"{line}\n{error}\noracle {c}\ndevice {d}") from None
