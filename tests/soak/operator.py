"""A sample of the operator database as a job: its results, and the gradients of its arguments."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import torch
from opdb.checks import UNINITIALIZED, has_gradient
from opdb.compare import assert_same_error, assert_same_results
from opdb.gaps import gap_of
from opdb.items import DTYPES, Item
from opdb.referee import judge
from opdb.samples import SEED, Call, samples, tensors_in
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from util import assert_same

from .job import Turn
from .shared import bin_of_tensors, host_numbers

_SAMPLES = 8
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


class Operator:
    def __init__(self) -> None:
        self.is_quiet = False
        self._op: OpInfo
        self._sample: SampleInput
        self._how = ""

    def make(self, numbers: Random, turn: Turn) -> None:
        while True:
            op, dtype = numbers.choice(_database())
            differentiated = has_gradient(op, dtype) and numbers.random() < 0.5
            with host_numbers(SEED):
                found = samples(op, dtype, requires_grad=differentiated, limit=_SAMPLES)
            if not found:
                continue
            self._op, self._sample = op, numbers.choice(found)
            self._how = f"{op.full_name} in {dtype}, differentiated: {differentiated}"
            if self._is_comparable():
                return self.play(turn)

    def play(self, turn: Turn) -> None:
        oracle, dev = (Call(self._op, self._sample, device) for device in ("cpu", turn.device))
        (want, expected), (got, error) = _outcome(self._op, oracle), _outcome(self._op, dev)
        assert_same_error(error, expected)
        if expected is None:
            self._compare(got, want, dev, oracle)
        if turn.drops:
            bin_of_tensors.extend((got, dev))

    def text(self) -> str:
        return f"# {self._how}\n# {self._sample.summary()}"

    def _is_comparable(self) -> bool:
        """Whether it concerns the device and draws no numbers."""
        call = Call(self._op, self._sample, "cpu")
        with host_numbers(SEED):
            before = torch.get_rng_state()
            _, error = _outcome(self._op, call)
            drew = not torch.equal(before, torch.get_rng_state())
        self.is_quiet = error is None
        return call.concerns_device and not drew

    def _compare(self, got: Any, want: Any, dev: Call, oracle: Call) -> None:
        """Where results are not close to each other, float64 decides."""
        try:
            assert_same_results(got[0], want[0], dev, oracle)
            assert_same(dev.tensors, oracle.tensors)
            assert_same(got[1], want[1], strides=False, offset=False)
        except AssertionError as error:
            if "not close" not in str(error):
                raise
            exact = Call(self._op, self._sample.transform(_wider), "cpu")
            (truth, _) = _outcome(self._op, exact)
            ours, theirs, truths = (
                [t.detach().cpu() for t in tensors_in((result, call.tensors))]
                for result, call in ((got, dev), (want, oracle), (truth, exact))
            )
            judge(list(zip(ours, theirs, strict=True)), truths)


def _outcome(op: OpInfo, call: Call) -> tuple[tuple[Any, Any], Exception | None]:
    """The result and the gradients, or the error, by when the device has done everything."""
    value, gradients = None, None
    try:
        value = call.run(op)
        roots = [t for t in tensors_in(call.process(value)) if t.requires_grad]
        leaves = [t for t in call.tensors if t.requires_grad]
        if roots and leaves:
            weights = [torch.ones_like(root) for root in roots]
            gradients = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
        if call.device != "cpu":
            torch.tiny.synchronize(call.device)
    except Exception as error:
        return (value, gradients), error.with_traceback(None)
    return (value, gradients), None


def _wider(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _WIDER:
        return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value
    return value.detach().to(_WIDER[value.dtype]).requires_grad_(value.requires_grad)


def _seeds_everything(op: OpInfo) -> bool:
    """Whether it calls torch.manual_seed, which seeds the devices of all other threads too."""
    return "wrapper_set_seed" in getattr(getattr(op.op, "__code__", None), "co_names", ())


@cache
def _database() -> list[tuple[OpInfo, torch.dtype]]:
    return [
        (op, dtype)
        for op in op_db
        if op.name not in UNINITIALIZED and not op.name.startswith("jiterator")
        if not _seeds_everything(op)
        for dtype in DTYPES
        if dtype in op.supported_dtypes("cpu")
        and not any(gap_of(Item(check, op, dtype)) for check in ("forward", "backward"))
    ]
