"""Random programs, run in lock step on the CPU and on the device; all live tensors must agree.

    python -m tests.programs --count 10000 --seed 0

prints each difference as a regression test ready to paste into tests/test_regressions.py.
Programs run in a forked process, so that a crash costs one program and is reported like one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import textwrap
import time
import traceback
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


def generate(
    rng: random.Random, device: str = DEVICE, say: Callable[[str, str], None] = lambda *_: None
) -> tuple[list[str], Difference | None]:
    """Write a program statement by statement while running it, up to the first difference.

    Each statement is told to `say` before it runs, lest it should take the process with it.
    """
    step = LockStep(device)
    gen = Gen(rng, step.cpu, autograd=rng.random() < 0.4, portable=KIND != "cpu")
    lines: list[str] = []
    try:
        for _ in range(rng.randint(STATEMENTS // 2, STATEMENTS * 3 // 2)):
            lines.append(gen.statement())
            say("line", lines[-1])
            step.do(lines[-1])
        step.finish()
        step.close()
        run(lines, device, times=1)
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
        self.saw_gradients = False
        self.versions: dict[str, int] = {}  # where the CPU's version counter is ahead

    def do(self, line: str) -> None:
        if self.pending and ";" in line:  # of several steps, the first must not run twice
            self.do("synchronize()")
        code = compile(line, "<program>", "exec")
        self.cpu["r"] = self.dev["r"] = None
        expected, got = attempt(code, self.cpu), attempt(code, self.dev)
        if isinstance(expected, NameError):
            raise NotAProgram(line)
        if got and self._is_late(got):
            self.pending.clear()  # the first error of a run stands for those after it
            got = attempt(code, self.dev)  # what a late error interrupts has not run
        if expected and not got:
            self.pending.append(expected)
            self.errors_were_late = True
        elif type(expected) is not type(got):
            raise Difference(f"{line}\nCPU: {describe(expected)}\ndevice: {describe(got)}")
        self._forget_what_has_no_value(line)
        self._compare(line, metadata)
        if line.startswith(("r = ", "synchronize()")) and not expected:
            same_value("r", self.cpu["r"], self.dev["r"])
            self.finish()

    def finish(self) -> None:
        """By now an error has been raised, and every tensor is as on the CPU."""
        if self.pending:
            error = attempt(compile("synchronize()", "<program>", "exec"), self.dev)
            if not (error and self._is_late(error)):
                lost = describe(self.pending[0])
                raise Difference(f"lost: {lost}\ndevice: {describe(error)}")
            self.pending.clear()
        self._compare("read", values)

    def close(self) -> None:
        """Drop what is left of a program that failed, with its errors."""
        self.dev.clear()
        attempt(compile("synchronize()", "<close>", "exec"), variables(self.device))

    def _is_late(self, error: BaseException) -> bool:
        """Whether this is one of the CPU's errors that were still to come."""
        return any(type(one) is type(error) and first_line(one) in str(error)
                   for one in self.pending)

    def _forget_what_has_no_value(self, line: str) -> None:
        for name in self.dev.keys() - self.cpu.keys():
            del self.dev[name]
        for name in [n for n, v in self.cpu.items() if v is None and n != "r"]:
            if self.dev[name] is not None:
                raise Difference(f"{line}\n{name} is None on the CPU only")
            del self.cpu[name], self.dev[name]

    def _compare(self, line: str, compare: Callable[..., None]) -> None:
        for name, value in list(self.cpu.items()):
            if name.startswith("t") and isinstance(value, torch.Tensor):
                try:
                    compare(name, value, self.dev[name])
                    self._compare_version(line, name, value, self.dev[name])
                except AssertionError as error:
                    raise Difference(f"{line}\n{error}") from None
                except Exception as error:
                    raise Difference(f"{line}\nreading {name}: {describe(error)}") from None

    def _compare_version(self, line: str, name: str, c: torch.Tensor, d: torch.Tensor) -> None:
        """A write that fails late was counted; gradients may be added up in place or not."""
        if self.errors_were_late:
            return
        self.saw_gradients |= "grad(" in line or "backward" in line
        if self.saw_gradients:
            self.versions.setdefault(name, c._version - d._version)
        if c._version - d._version != self.versions.get(name, 0):
            raise AssertionError(f"{name}: version {c._version} on the CPU, not {d._version}")


def variables(device: str) -> dict[str, Any]:
    def synchronize() -> None:
        if not device.startswith("cpu"):
            torch.tiny.synchronize()

    def text(t: torch.Tensor) -> str:
        return "".join(repr(t.detach()).split()).replace(f",device='{device}:0'", "")

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


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def metadata(name: str, c: torch.Tensor, d: torch.Tensor) -> None:
    """Everything that a tensor knows without its data; asking must not run anything."""
    wanted, found = facts(c), facts(d)
    if wanted != found:
        wrong = {k: (v, found[k]) for k, v in wanted.items() if found[k] != v}
        raise AssertionError(f"{name}: (CPU, device) {wrong}")


def facts(t: torch.Tensor) -> dict[str, Any]:
    return {"shape": t.shape, "stride": t.stride(), "offset": t.storage_offset(),
            "dtype": t.dtype, "is_view": t._is_view(),
            "conj": t.is_conj(), "neg": t.is_neg(), "contiguous": t.is_contiguous(),
            "history": history(t)}


def history(t: torch.Tensor) -> str:
    """Where it came from; x[i] = number is a fill on the CPU and a copy on any other device."""
    try:
        name = type(t.grad_fn).__name__.replace("FillBackward3", "CopyBackwards")
        return f"{t.requires_grad} {t.is_leaf} {name}"
    except RuntimeError as error:  # a view of several whose base was written to
        return describe(error)


def values(name: str, c: torch.Tensor, d: torch.Tensor) -> None:
    wanted, found = c.untyped_storage().nbytes(), d.untyped_storage().nbytes()
    if wanted != found:
        raise AssertionError(f"{name}: a storage of {found} bytes, not {wanted}")
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

    def work(say: Callable[[str, str], None]) -> None:
        for number in range(seed, end):
            say("seed", str(number))
            lines, difference = generate(random.Random(number), say=say)
            if difference:
                say("test", as_failure(number, lines, difference))
                return

    last, lines, test = seed, [], None
    status, said = in_child(work)
    for word, value in said:
        if word == "seed":
            last, lines = int(value), []
        elif word == "line":
            lines.append(value)
        else:
            test = value
    if status:
        smaller = reduce(lines, crashes) if crashes(lines) else lines
        test = as_test(f"seed_{last}", smaller, f"the process ended with status {status}")
    return last + 1, test


def crashes(lines: list[str]) -> bool:
    def work(say: Callable[[str, str], None]) -> None:
        try:
            run(lines)
        except (Difference, NotAProgram):
            pass

    return in_child(work)[0] != 0


def in_child(work: Callable[[Callable[[str, str], None]], None]) -> tuple[int, list[list[str]]]:
    """Do `work` in a forked process; its exit status, and what it said up to then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            with os.fdopen(writing, "w", buffering=1) as out:
                work(lambda *said: print(json.dumps(said), file=out))
            status = 0
        except BaseException:  # a forked child must never return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as said:
        heard = [json.loads(line) for line in said]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), heard


def as_failure(number: int, lines: list[str], difference: Difference) -> str:
    lines = reduce(lines, differs)
    try:
        run(lines)
    except Difference as smaller:
        difference = smaller
    return as_test(f"seed_{number}", lines, difference)


if __name__ == "__main__":
    sys.exit(main())
