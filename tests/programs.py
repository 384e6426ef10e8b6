"""Random programs, run in lock step on the CPU and on the device; all live tensors must agree.

    python -m tests.programs --count 10000 --seed 0

prints each difference as a regression test ready to paste into tests/test_regressions.py.
Programs run in a forked process, so that a crash costs one program and is reported like one.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

if __package__:
    from .program_ops import Gen
    from .util import DEVICE, KIND
else:
    from program_ops import Gen
    from util import DEVICE, KIND

STATEMENTS = 32


class Difference(AssertionError):
    """The device did not do what the CPU did."""


class NotAProgram(Exception):
    """A statement uses a name that was never made; only reduced programs have that."""


def check(text: str, device: str = DEVICE) -> None:
    """Run a program given as text in lock step; raises Difference where the device differs."""
    run([line.strip() for line in text.strip().splitlines()], device)


def run(lines: list[str], device: str = DEVICE) -> None:
    step = LockStep(device)
    try:
        for line in lines:
            step.do(line)
        step.finish()
    finally:
        step.close()


def generate(rng: random.Random, device: str = DEVICE) -> tuple[list[str], Difference | None]:
    """Write a program statement by statement while running it, up to the first difference."""
    step = LockStep(device)
    gen = Gen(rng, step.cpu, autograd=rng.random() < 0.4, portable=KIND != "cpu")
    lines: list[str] = []
    try:
        for _ in range(rng.randint(STATEMENTS // 2, STATEMENTS * 3 // 2)):
            lines.append(gen.statement())
            step.do(lines[-1])
        step.finish()
    except Difference as difference:
        return lines, difference
    finally:
        step.close()
    return lines, None


def reduce(lines: list[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """Leave out statements, larger pieces first, as long as the program still fails."""
    size = len(lines)
    while size:
        size = min(size, len(lines))
        for start in reversed(range(0, len(lines), size)):  # what uses a tensor goes before it
            fewer = lines[:start] + lines[start + size:]
            if fewer and fails(fewer):
                lines = fewer
        size //= 2
    return lines


def differs(lines: list[str]) -> bool:
    try:
        run(lines)
    except Difference:
        return True
    except NotAProgram:
        return False
    return False


def as_test(name: str, lines: list[str], reason: object) -> str:
    body = textwrap.indent("\n".join(lines), " " * 8)
    note = textwrap.indent(str(reason), "# ", lambda line: True)
    return f'{note}\ndef test_{name}() -> None:\n    check("""\n{body}\n    """)\n'


# ---- lock step --------------------------------------------------------------------------


class LockStep:
    """Two sets of variables, one with `device` the CPU; every statement runs in both."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.cpu, self.dev = variables("cpu"), variables(device)
        self.pending: list[BaseException] = []  # raised by the CPU, not yet by the device
        self.errors_were_late = False

    def do(self, line: str) -> None:
        try:
            code = compile(line, "<program>", "exec")
        except SyntaxError as error:
            raise AssertionError(f"the generator wrote {line!r}") from error
        if self.pending and ";" in line:  # of several steps, the first must not run twice
            self.do("synchronize()")
        self.cpu["r"] = self.dev["r"] = None
        expected, got = attempt(code, self.cpu), attempt(code, self.dev)
        if isinstance(expected, NameError) and not isinstance(expected, UnboundLocalError):
            raise NotAProgram(line)
        got = self._late_errors(line, code, got)
        if expected and not got:
            self.pending.append(expected)
            self.errors_were_late = True
        elif type(expected) is not type(got):
            raise Difference(f"{line}\nCPU: {describe(expected)}\ndevice: {describe(got)}")
        for name in self.dev.keys() - self.cpu.keys():
            del self.dev[name]
        for name in [n for n, v in self.cpu.items() if v is None and n != "r"]:
            if self.dev[name] is not None:
                raise Difference(f"{line}\n{name} is None on the CPU only")
            del self.cpu[name], self.dev[name]
        self._compare(line, metadata, cheap=True)
        if line.startswith(("r = ", "synchronize()")) and not expected:
            if self.pending:
                raise Difference(f"{line}\nlost: {describe(self.pending[0])}")
            same_value("r", self.cpu["r"], self.dev["r"])
            self._compare(line, values, cheap=False)

    def finish(self) -> None:
        self.do("synchronize()")

    def close(self) -> None:
        """Drop what is left of a program that failed, with its errors."""
        self.dev.clear()
        attempt(compile("synchronize()", "<close>", "exec"), variables(self.device))

    def _late_errors(self, line: str, code: Any, got: BaseException | None) -> BaseException | None:
        """A deferred error surfaces in a later statement, which then has not run."""
        while self.pending and got and type(got) in map(type, self.pending):
            kinds = list(map(type, self.pending))
            del self.pending[: kinds.index(type(got)) + 1]
            got = attempt(code, self.dev)
            if not got:
                self.pending.clear()
        return got

    def _compare(self, line: str, compare: Callable[..., None], cheap: bool) -> None:
        for name, value in list(self.cpu.items()):
            if isinstance(value, torch.Tensor):
                try:
                    compare(name, value, self.dev[name], not self.errors_were_late)
                except AssertionError as error:
                    raise Difference(f"{line}\n{error}") from None
                except Exception as error:
                    raise Difference(f"{line}\nreading {name}: {describe(error)}") from None


def variables(device: str) -> dict[str, Any]:
    def synchronize() -> None:
        if not device.startswith("cpu"):
            torch.tiny.synchronize()

    def text(t: torch.Tensor) -> str:
        return repr(t.detach()).replace(f", device='{device}:0'", "").replace(" ", "")

    return {"torch": torch, "device": device, "seeded": seeded, "indices": indices,
            "synchronize": synchronize, "text": text}


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


def metadata(name: str, c: torch.Tensor, d: torch.Tensor, versions: bool) -> None:
    wanted, found = facts(c), facts(d)
    if not versions:
        wanted.pop("version"), found.pop("version")
    if wanted != found:
        wrong = {k: (v, found[k]) for k, v in wanted.items() if found[k] != v}
        raise AssertionError(f"{name}: (CPU, device) {wrong}")


def facts(t: torch.Tensor) -> dict[str, Any]:
    return {"shape": t.shape, "stride": t.stride(), "offset": t.storage_offset(),
            "dtype": t.dtype, "version": t._version, "is_view": t._is_view(),
            "conj": t.is_conj(), "neg": t.is_neg(), "contiguous": t.is_contiguous(),
            "history": history(t), "bytes": t.untyped_storage().nbytes()}


def history(t: torch.Tensor) -> str:
    try:
        return f"{t.requires_grad} {t.is_leaf} {type(t.grad_fn).__name__}"
    except RuntimeError as error:  # a view of several whose base was written to
        return describe(error)


def values(name: str, c: torch.Tensor, d: torch.Tensor, versions: bool) -> None:
    c, d = c.data, d.data.cpu()
    if not torch.equal(c, d):
        torch.testing.assert_close(d, c, equal_nan=True, msg=lambda m: f"{name}: {m}\n"
                                   f"CPU {c}\ndevice {d}")


def same_value(name: str, c: Any, d: Any) -> None:
    try:
        if isinstance(c, (str, bool, type(None))):
            if c != d:
                raise AssertionError(f"{c!r} != {d!r}")
        else:
            torch.testing.assert_close(torch.as_tensor(d).cpu(), torch.as_tensor(c),
                                       equal_nan=True)
    except AssertionError as error:
        raise Difference(f"{name}: {error}\nCPU {c}\ndevice {d}") from None


# ---- the command ------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-going", type=int, default=1, help="differences to look for")
    args = parser.parse_args()
    started, seed, end, failures = time.time(), args.seed, args.seed + args.count, 0
    while seed < end and failures < args.keep_going:
        seed, found = fuzz_in_child(seed, end)
        if found is not None:
            failures += 1
            print(found, flush=True)
        spent = time.time() - started
        print(f"{seed - args.seed} programs, {failures} differences, {spent:.0f} s", flush=True)
    return 1 if failures else 0


def fuzz_in_child(seed: int, end: int) -> tuple[int, str | None]:
    """Run programs until one differs; returns the next seed, and the difference as a test."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            prepare()
            with os.fdopen(writing, "w", buffering=1) as out:
                for number in range(seed, end):
                    out.write(f"seed {number}\n")
                    lines, difference = generate(random.Random(number))
                    if difference:
                        out.write(as_failure(number, lines, difference))
                        break
            status = 0
        except BaseException as error:  # the child must not return into its parent's code
            print("".join(__import__("traceback").format_exception(error)), file=sys.stderr)
        finally:
            os._exit(status)
    os.close(writing)
    last, report = seed, ""
    with os.fdopen(reading) as lines_in:
        for line in lines_in:
            if line.startswith("seed ") and not report:
                last = int(line.split()[1])
            else:
                report += line
    _, status = os.waitpid(child, 0)
    if status:
        return last + 1, f"seed {last}: the process ended with status {status}\n"
    return last + 1, report or None


def as_failure(number: int, lines: list[str], difference: Difference) -> str:
    lines = reduce(lines, differs)
    try:
        run(lines)
    except Difference as smaller:
        difference = smaller
    return as_test(f"seed_{number}", lines, difference)


def prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main())
