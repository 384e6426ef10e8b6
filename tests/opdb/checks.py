"""The checks: each takes an operator and a dtype and raises where device and oracle differ.

A check raises NotApplicable where no sample can be checked, since the oracle refuses all of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from util import ORACLE, PORTABLE, assert_same, overlaps_itself

from opdb.compare import (
    NotApplicable,
    Outcome,
    aliases,
    assert_same_results,
    on_both,
    outcome,
    whole,
)
from opdb.samples import Call, Mover, repeated, samples, tensors_in, with_gaps

# A body compares one call on both devices; False where the oracle refuses it.
Body = Callable[[Call, Call], bool]
Destination = Callable[[torch.Tensor], torch.Tensor]

# Their results, or some of them, are whatever was in memory.
UNINITIALIZED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward",
}  # fmt: skip


def forward(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """Results, what they share with the arguments, and the arguments afterwards."""
    _need(_for_each(op, samples(op, dtype), device, partial(_forward, op)))


def noncontiguous(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """As forward, with arguments that have gaps between their elements."""
    given = [with_gaps(sample) for sample in samples(op, dtype)]
    _need(_for_each(op, given, device, partial(_forward, op)))


def view(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """Strides, offset and base of views; writes through them, which autograd sees as well."""
    _need(_for_each(op, samples(op, dtype), device, partial(_view, op)))
    if has_gradient(op, dtype):
        given = samples(op, dtype, requires_grad=True)
        body = partial(_gradients, partial(_write_through_views, op), 1)
        _for_each(op, given, device, body)


def inplace(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """Writes in place are seen by an alias and by autograd, and change nothing else."""
    given = samples(op, dtype)
    given += [with_gaps(sample) for sample in given]
    _need(_for_each(op, given, device, partial(_inplace, op)))
    if has_gradient(op, dtype) and op.supports_inplace_autograd:
        given = samples(op, dtype, requires_grad=True)
        _for_each(op, given, device, partial(_gradients, partial(_write_in_place, op), 1))


def out(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """out= into a slice, into nothing, and into what has the wrong size or dtype."""
    given = samples(op, dtype)
    ran = [
        _for_each(op, given, device, partial(_out, op, destination))
        for destination in (_slice, _nothing, _too_large, _other_dtype)
    ]
    _need(sum(ran))


def backward(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """The gradients of all arguments."""
    given = samples(op, dtype, requires_grad=True)
    _need(_for_each(op, given, device, partial(_gradients, op, 1)))


def second_order(op: OpInfo, dtype: torch.dtype, device: str) -> None:
    """The gradients of the gradients."""
    given = samples(op, dtype, requires_grad=True)
    # In threads of their own, gradients would be added up in an order that depends on history.
    with torch.autograd.set_multithreading_enabled(False):
        ran = _for_each(op, given, device, partial(_gradients, op, 2))
    _need(ran, "the oracle has no second derivative")


def errors(op: OpInfo, dtype: torch.dtype, device: str) -> None:  # noqa: ARG001
    """Bad arguments raise as on the oracle, are left as they were, and the device still works."""
    _need(_for_each(op, bad_samples(op), device, partial(_error, op)), "the oracle raises no error")


def has_gradient(op: OpInfo, dtype: torch.dtype) -> bool:
    """Whether the database gives `op` a gradient in `dtype`."""
    return op.supports_autograd and dtype in op.supported_backward_dtypes(ORACLE)


def bad_samples(op: OpInfo) -> list[SampleInput]:
    """What the database says `op` refuses; a GPU must not see bad indices, they end its context."""
    found = op.error_inputs_func
    if found is None:
        return []
    return [error.sample_input.transform(_on_cpu) for error in found(op, ORACLE)]


def shares_memory(op: OpInfo, dtype: torch.dtype) -> bool:
    """Whether a result of `op` is a view of an argument, for one of its first samples."""
    for sample in samples(op, dtype, limit=6):
        call = Call(op, sample, "cpu")
        want = outcome(call, lambda call: call.run(op))
        if want.error is None and _views(want.value, call):
            return True
    return False


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) and value.is_cuda else value


def _for_each(op: OpInfo, given: list[SampleInput], device: str, body: Body) -> int:
    """Run `body` on each sample; how many the oracle did not refuse."""
    ran = 0
    for number, sample in repeated(list(enumerate(given))):
        oracle, dev = Call(op, sample, ORACLE), Call(op, sample, device)
        oracle.number = dev.number = number
        if not oracle.concerns_device:
            continue
        try:
            ran += body(oracle, dev)
        except Exception as error:
            if ORACLE == "cuda" and _differs_from_itself(op, sample, body):
                continue
            error.add_note(f"in {sample.summary()}")
            raise
    return ran


def _differs_from_itself(op: OpInfo, sample: SampleInput, body: Body) -> bool:
    """Whether the oracle would not pass either, not every time: some kernels race."""
    try:
        for _ in range(20):
            body(Call(op, sample, ORACLE), Call(op, sample, ORACLE))
    except AssertionError:
        return True
    return False


def _need(ran: int, otherwise: str = "the oracle refuses every sample") -> None:
    if not ran:
        raise NotApplicable(otherwise)


def _forward(op: OpInfo, oracle: Call, dev: Call) -> bool:
    want, got = on_both(oracle, dev, lambda call: call.run(op))
    if want.error is None:
        assert_same_results(got.value, want.value, dev, oracle, values=_is_known(op, want))
    assert_same(dev.tensors, oracle.tensors, values=_is_known(op, want))
    return want.error is None


def _is_known(op: Any, want: Outcome) -> bool:
    """Whether the values are to be compared: portable devices draw random numbers of their own."""
    return getattr(op, "name", None) not in UNINITIALIZED and not (PORTABLE and want.random)


def _view(op: OpInfo, oracle: Call, dev: Call) -> bool:
    want, got = on_both(oracle, dev, lambda call: call.run(op))
    if want.error is not None or not _views(want.value, oracle):
        return False
    assert_same_results(got.value, want.value, dev, oracle)
    ours, theirs = _bases(got.value, dev), _bases(want.value, oracle)
    assert ours == theirs, f"results are views of arguments {ours}, not {theirs}"
    results = {oracle: list(tensors_in(want.value)), dev: list(tensors_in(got.value))}
    for i, result in enumerate(results[oracle]):
        fresh = _numbers(result)
        on_both(oracle, dev, lambda call, i=i, fresh=fresh: results[call][i].copy_(fresh))
        assert_same(results[dev], results[oracle])
        assert_same([whole(t) for t in dev.tensors], [whole(t) for t in oracle.tensors])
    on_both(oracle, dev, lambda call: [t.zero_() for t in call.tensors])
    assert_same(results[dev], results[oracle])
    return True


def _numbers(view: torch.Tensor) -> torch.Tensor:
    """What to write through a view: random numbers, all the same where the order would matter."""
    different = () if _races(view) else view.shape
    return torch.randint(0, 100, different).to(view.dtype).expand(view.shape)


def _races(view: torch.Tensor) -> bool:
    """Whether writes through a view end in one place, in an order that a GPU leaves open."""
    return ORACLE == "cuda" and overlaps_itself(view)


def _views(result: Any, call: Call) -> bool:
    """Whether a result is a tensor of its own that shares memory with an argument."""
    return any(itself is None and base is not None for itself, base in aliases(result, call))


def _bases(result: Any, call: Call) -> list[tuple[bool, int | None]]:
    """For each tensor of a result: whether it is a view, and of which argument."""
    arguments = {id(t): i for i, t in enumerate(call.tensors)}
    return [(t._is_view(), arguments.get(id(t._base))) for t in tensors_in(result)]


def _write_through_views(op: OpInfo, given: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy of the input after all the views that `op` makes of it were written through."""
    base = given.clone()
    for result in tensors_in(op(base, *args, **kwargs)):
        if result._base is base and not _races(result):
            result.mul_(2)
    return base


def _inplace(op: OpInfo, oracle: Call, dev: Call) -> bool:
    want, got = on_both(oracle, dev, lambda call: call.run(partial(_aliased_write, op)))
    known = _is_known(op, want)
    if want.error is None:
        assert_same(got.value, want.value, values=known)
    assert_same(dev.tensors, oracle.tensors, values=known)
    ours, theirs = ([t._version for t in call.tensors] for call in (dev, oracle))
    assert ours == theirs, f"versions {ours}, not {theirs}"
    return want.error is None


def _aliased_write(op: OpInfo, given: torch.Tensor, *args: Any, **kwargs: Any) -> list[Any]:
    alias, memory = given.view(given.shape), whole(given)
    result = op.inplace_variant(given, *args, **kwargs)
    return [result is given, result, alias, memory, alias._version]


def _write_in_place(op: OpInfo, given: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A copy of the input changed in place, and the same seen through an alias."""
    copy = given.clone()
    alias = copy.view(copy.shape)
    op.inplace_variant(copy, *args, **kwargs)
    return copy, alias


def _out(op: OpInfo, destination: Destination, oracle: Call, dev: Call) -> bool:
    plain = list(tensors_in(outcome(oracle, lambda call: call.run(op)).value))
    if not plain or any(t.layout != torch.strided for t in plain):
        return False
    made = [destination(result) for result in plain]
    given = {call: Mover(call.device)(made) for call in (oracle, dev)}
    want, got = on_both(oracle, dev, lambda call: _into(op, given[call], call))
    seen = _itself if destination in (_nothing, _too_large) else whole
    results = {call: [seen(t) for t in given[call]] for call in (dev, oracle)}
    assert_same(results[dev], results[oracle], values=op.name not in UNINITIALIZED)
    if want.error is None:
        ours, theirs = set(got.warned), set(want.warned)
        # What reads an empty tensor has nothing to wait for, nor to hear of.
        assert ours == theirs or not any(t.numel() for t in plain), f"warned {ours}, not {theirs}"
        ours, theirs = _are(got.value, given[dev]), _are(want.value, given[oracle])
        assert ours == theirs, "a result is not out="
    return want.error is None


def _are(results: Any, given: list[torch.Tensor]) -> list[bool]:
    """For each result whether it is the tensor that was given for it; some return nothing."""
    return [result is one for result, one in zip(tensors_in(results), given, strict=False)]


def _into(op: OpInfo, given: list[torch.Tensor], call: Call) -> Any:
    """Run `op` and read what it wrote, by when every warning was given."""
    result = call.run(op, out=given[0] if len(given) == 1 else tuple(given))
    for tensor in given:
        tensor.cpu()
    return result


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _slice(result: torch.Tensor) -> torch.Tensor:
    """Every second element of a larger tensor."""
    if result.dim() == 0:
        return torch.ones(3, dtype=result.dtype)[1]
    *outer, inner = result.shape
    larger = [size + 2 for size in outer[:1]] + [*outer[1:], 2 * inner + 1]
    inside = [slice(1, -1) for _ in outer[:1]] + [..., slice(1, None, 2)]
    return torch.ones(larger, dtype=result.dtype)[tuple(inside)]


def _nothing(result: torch.Tensor) -> torch.Tensor:
    return torch.ones(0, dtype=result.dtype)


def _too_large(result: torch.Tensor) -> torch.Tensor:
    return torch.ones(result.numel() + 1, dtype=result.dtype)


def _other_dtype(result: torch.Tensor) -> torch.Tensor:
    """A dtype that the result cannot be cast to, where there is one."""
    narrower = torch.int64 if result.is_floating_point() or result.is_complex() else torch.bool
    return torch.ones_like(result, dtype=torch.float32 if result.dtype == torch.bool else narrower)


def _gradients(function: Callable[..., Any], order: int, oracle: Call, dev: Call) -> bool:
    """Differentiate a function `order` times by everything it depends on."""
    want, got = on_both(oracle, dev, lambda call: call.process(call.run(function)))
    known = _is_known(function, want)
    values = {oracle: _differentiable(want.value), dev: _differentiable(got.value)}
    leaves = {call: _differentiable(call.tensors) for call in (oracle, dev)}
    for i in range(order):
        if not values[oracle] or not leaves[oracle]:
            return False
        numbers = {call: len(values[call]) for call in (dev, oracle)}
        assert numbers[dev] == numbers[oracle], (
            f"{numbers[dev]} results require a gradient, not {numbers[oracle]}"
        )
        more = i + 1 < order
        made = [
            _weight(t, expanded=n % 2 == 1).requires_grad_(more)
            for n, t in enumerate(values[oracle], oracle.number)
        ]
        weights = {call: Mover(call.device)(made) for call in (oracle, dev)}

        def differentiate(call: Call, weights: Any = weights, more: bool = more) -> Any:
            root = _Weighted.apply(weights[call], *values[call])
            return torch.autograd.grad(root, leaves[call], allow_unused=True, create_graph=more)

        want, got = on_both(oracle, dev, differentiate)
        if want.error is not None:
            return False
        assert_same(got.value, want.value, strides=False, offset=False, values=known)
        ours, theirs = _strides_that_matter(got.value), _strides_that_matter(want.value)
        assert ours == theirs, f"gradients have strides {ours}, not {theirs}"
        for call, grads in ((oracle, want.value), (dev, got.value)):
            values[call] = _differentiable(grads)
            leaves[call] = leaves[call] + weights[call]
    return True


class _Weighted(torch.autograd.Function):
    """Makes one root of several values, whose gradients are the given weights.

    PyTorch goes through the gradients of several roots in no fixed order, except on the CPU.
    """

    @staticmethod
    def forward(ctx: Any, weights: list[torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        ctx.weights = weights
        return torch.zeros((), device=values[0].device)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return None, *ctx.weights


def _differentiable(tree: Any) -> list[torch.Tensor]:
    return [t for t in tensors_in(tree) if t.requires_grad]


def _strides_that_matter(gradients: Any) -> list[list[int]]:
    """The strides of all sizes above 1: the others tell whether gradients were added in place."""
    return [
        [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1 and t.numel()]
        for t in tensors_in(gradients)
        if t.layout == torch.strided
    ]


def _weight(value: torch.Tensor, expanded: bool) -> torch.Tensor:
    """What a value is weighted with: random numbers, or ones without memory as from a sum."""
    if expanded:
        return torch.ones((), dtype=value.dtype).expand(value.shape)
    return torch.randn(value.shape).to(value.dtype)


def _error(op: OpInfo, oracle: Call, dev: Call) -> bool:
    sizes = [t.shape for t in oracle.tensors]
    want, _ = on_both(oracle, dev, lambda call: call.run(op))
    for actual, expected, size in zip(dev.tensors, oracle.tensors, sizes, strict=True):
        if expected.shape == size:  # else it was resized before the error; no need to do so
            assert_same(actual, expected)
    assert (torch.ones(3, device=dev.device) + 1).tolist() == [2, 2, 2]
    return want.error is not None
