"""What a call did on one device, and whether the other device did the same."""

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from util import ORACLE, PORTABLE, assert_same

from opdb.samples import Call, seed, tensors_in


class NotApplicable(Exception):  # noqa: N818 (not an error)
    """The oracle cannot do this either: there is nothing to compare with."""


@dataclass
class Outcome:
    """What a call gave: a value, or an error; the warnings; whether it drew random numbers."""

    value: Any = None
    error: Exception | None = None
    warned: tuple[str, ...] = ()
    random: bool = False


def outcome(call: Call, function: Callable[[Call], Any], *, finish: bool = False) -> Outcome:
    """Run `function` with fresh seeds; with `finish`, also what the device may have put off."""
    result = Outcome()
    seed()
    state = torch.get_rng_state()
    draws = _Draws() if PORTABLE and call.device == ORACLE else nullcontext()
    with draws as drawn, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result.value = function(call)
            if finish:
                synchronize(call.device)
        except Exception as error:
            result.error = error
    result.warned = tuple(f"{w.category.__name__}: {plain(str(w.message))}" for w in caught)
    result.random = not torch.equal(torch.get_rng_state(), state) or bool(drawn and drawn.any)
    return result


class _Draws(TorchDispatchMode):
    """Whether random numbers are drawn, also where the generator is put back afterwards."""

    any = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        state = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        self.any |= not torch.equal(torch.get_rng_state(), state)
        return result


def on_both(oracle: Call, device: Call, function: Callable[[Call], Any]) -> tuple[Outcome, Outcome]:
    """The outcomes of `function` on the oracle and on the device; errors have to be the same."""
    want = outcome(oracle, function)
    got = outcome(device, function, finish=want.error is not None)
    assert_same_error(got.error, want.error)
    if torch.device(device.device).type != ORACLE:
        host_draws = want.random and ORACLE != "cpu"  # a few operators ask the host for numbers
        assert got.random == host_draws, "random numbers of the CPU were drawn for the device"
    return want, got


def assert_same_error(got: Exception | None, want: Exception | None) -> None:
    """The same type and message, up to the device's name and what the device has to add to it."""
    if want is None:
        if got is not None:
            raise got
        return
    expected = f"{type(want).__name__}: {plain(str(want))}"
    assert got is not None, f"no error, but the oracle raises {expected}"
    actual = f"{type(got).__name__}: {plain(str(got))}"
    assert type(got) is type(want), f"{actual}\nbut the oracle raises\n{expected}"
    assert plain(str(want)) in plain(str(got)), f"{actual}\nbut the oracle raises\n{expected}"


def assert_same_results(
    got: Any, want: Any, device: Call, oracle: Call, *, values: bool = True
) -> None:
    """The same results, on the device, which share memory with the same arguments."""
    assert_same(got, want, values=values)
    here = torch.device(device.device).type
    for ours, theirs in zip(tensors_in(got), tensors_in(want), strict=True):
        where = here if theirs.device.type == ORACLE else theirs.device.type
        assert ours.device.type == where, f"a result is on {ours.device}, not on {where}"
    ours, theirs = aliases(got, device), aliases(want, oracle)
    assert ours == theirs, f"results share memory with arguments {ours}, not {theirs}"


def aliases(result: Any, call: Call) -> list[tuple[int | None, int | None]]:
    """For each tensor of a result: which argument it is, and whose memory it shares."""
    arguments = {id(t): i for i, t in enumerate(call.tensors)}
    storages = {storage_of(t): i for i, t in reversed(list(enumerate(call.tensors)))}
    storages.pop(None, None)
    return [(arguments.get(id(t)), storages.get(storage_of(t))) for t in tensors_in(result)]


def storage_of(tensor: torch.Tensor) -> int | None:
    """The identity of a tensor's storage; None where it has none of its own."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory that a tensor is a part of, as a flat tensor."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def synchronize(device: str) -> None:
    """Wait until everything asked of the device is done."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize()


def plain(text: str) -> str:
    """A message with the names of devices taken out, up to the first tensor that it prints."""
    text = text.partition("tensor([")[0]
    names = r"(?i)(?:\b|(?<=Sparse)|(?<=SparseCsr))(tiny|privateuse(one|1)|cuda|cpu)(:\d+)?\b"
    return re.sub(names, "DEVICE", text)
