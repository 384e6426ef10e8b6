"""Finding programs that differ, and making them small."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable

from util import DEVICE, ORACLE

from . import compute, read, write  # noqa: F401  (each adds its kinds of statements)
from .gen import Gen
from .lockstep import DifferenceError, LockStep, NotAProgramError, run
from .make import create

STATEMENTS = 32


def generate(
    rng: random.Random,
    device: str = DEVICE,
    say: Callable[[str, str], None] = lambda *_: None,
    times: int = 2,
) -> tuple[list[str], DifferenceError | None]:
    """Write a program statement by statement while running it, up to the first difference.

    It runs `times` in all. Each statement is told to `say` before it runs, lest it should take the
    process with it.
    """
    lines: list[str] = []
    try:
        write_program(rng, LockStep(device), lines, say)
        run(lines, device, times - 1)
    except DifferenceError as difference:
        return lines, difference
    return lines, None


def write_program(
    rng: random.Random,
    step: LockStep,
    lines: list[str],
    say: Callable[[str, str], None] = lambda *_: None,
) -> None:
    """Add to `lines` the statements of a program, each of which has run when the next is chosen."""
    gen = Gen(rng, step.oracle, autograd=rng.random() < 0.4, gpu=ORACLE == "cuda")
    lines.append(f"limit({rng.choice((4096, 4096, 1, 2, 5, 11))})")
    try:
        step.do(lines[0])
        for _ in range(rng.randint(STATEMENTS // 2, STATEMENTS * 3 // 2)):
            lines.append(gen.statement() if len(gen.names()) > 1 else create(gen))
            say("line", lines[-1])
            step.do(lines[-1])
        step.finish()
    finally:
        step.close()


def reduce(lines: list[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """Leave out statements, larger pieces first, as long as the program still fails."""
    size = len(lines)
    while size:
        size = min(size, len(lines))
        for start in reversed(range(0, len(lines), size)):  # what uses a tensor goes before it
            fewer = lines[:start] + lines[start + size :]
            if fewer and fails(fewer):
                lines = fewer
        size //= 2
    return lines


def differs(lines: list[str], times: int = 2) -> bool:
    """Whether this is a program, and the device differs from the oracle in it."""
    try:
        run(lines, times=times)
    except DifferenceError:
        return True
    except NotAProgramError:
        return False
    return False


def as_test(name: str, lines: list[str], reason: object) -> str:
    """The program as a test to paste, with what was wrong as its comment."""
    body = textwrap.indent("\n".join(lines), " " * 8)
    note = "\n".join(f"# {line}" for line in str(reason).splitlines())
    return f'{note}\ndef test_{name}() -> None:\n    check("""\n{body}\n    """)\n'
