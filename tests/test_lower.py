"""Every aten call that op_db makes, forward and backward, lowered, compiled and compared."""

import ctypes
import dataclasses
import itertools
import re
import warnings
from collections.abc import Iterator
from typing import Any

import compiled_program
import pytest
import torch
from no_lowering import NO_LOWERING, REFUSED
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from util import largest_error

from torch_tiny.engine import c_math, codegen
from torch_tiny.engine.codegen_home import Program
from torch_tiny.engine.codegen_place import Kernel
from torch_tiny.lower import Lifted, NoLowering, linalg, lower, movement, spectral, written
from torch_tiny.lower.shapes import DTYPES
from torch_tiny.uops import UOp, buffer_param, dtypes


@dataclasses.dataclass
class Call:
    """An operator call as the CPU made it."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Any]

    @property
    def key(self) -> str:
        def shown(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return (tuple(value.shape), value.dtype)
            return value

        return repr((self.op, pytree.tree_map(shown, (self.args, self.kwargs))))


class Recorder(TorchDispatchMode):
    """Keeps what each call was given and what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        name = func.name()
        supported = not is_ignored(func, (args, kwargs))
        before = pytree.tree_map(_copied, (args, kwargs)) if supported else None
        result = func(*args, **kwargs)
        made = any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves((args, result)))
        if before is not None and made and not is_ignored(func, result):
            results = _expected(name, func, args, kwargs, result)
            self.calls.append(Call(name, *before, results))
        return result


def is_ignored(func: Any, values: Any) -> bool:
    """Calls that are no business of the tables: random, uninitialized, or of other dtypes."""
    if torch.Tag.nondeterministic_seeded in func.tags or func.name() in _NOT_COMPUTED:
        return True
    if func.name().startswith(("aten::empty", "aten::new_empty", "prim", "profiler")):
        return True
    tensors = [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]
    return any(
        t.dtype not in DTYPES or t.layout != torch.strided or t.numel() > 200_000 for t in tensors
    ) or (func.name() == "aten::as_strided" and not tensors[0].is_contiguous())


_NOT_COMPUTED = {
    "aten::equal",
    "aten::allclose",
    "aten::is_same_size",
    "aten::_local_scalar_dense",
    "aten::set_.source_Storage",
    "aten::resize_",
    "aten::lift_fresh",
    "aten::set_.source_Tensor",
    "aten::resize_as_",
}


def _copied(value: Any) -> Any:
    return value.detach().clone().contiguous() if isinstance(value, torch.Tensor) else value


def _expected(name: str, func: Any, args: Any, kwargs: Any, result: Any) -> list[Any]:
    """What `lower` promises: the results, then written arguments that are not returned."""
    returns = func._schema.returns
    results = pytree.tree_leaves(result, is_leaf=lambda v: v is None) if returns else []
    names = written(name, args)
    returned = any(r.alias_info is not None and r.alias_info.is_write for r in returns)
    if names and not returned:
        values = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        values.update(kwargs)
        results += pytree.tree_leaves([values.get(n) for n in names if values.get(n) is not None])
    return [_copied(r) for r in results]


def record(op: Any, dtype: torch.dtype, limit: int, backward: bool) -> list[Call]:
    """The distinct calls of an op_db entry's first samples."""
    torch.default_generator.manual_seed(0)
    grad = backward and dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    calls: dict[str, Call] = {}
    # op.sample_inputs would look through the whole stack for the test's name, 30 ms each time.
    samples = op.sample_inputs_func(op, "cpu", dtype, grad)
    for sample in itertools.islice(samples, limit):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for call in _calls_of(op, sample, grad):
                calls.setdefault(call.key, call)
    return list(calls.values())


def _calls_of(op: Any, sample: Any, grad: bool) -> list[Call]:
    with Recorder() as recorder:
        out = op(sample.input, *sample.args, **sample.kwargs)
        if sample.output_process_fn_grad is not None and grad:
            out = sample.output_process_fn_grad(out)
        outs = [t for t in pytree.tree_leaves(out)
                if isinstance(t, torch.Tensor) and t.requires_grad]  # fmt: skip
        ins = [t for t in pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
               if isinstance(t, torch.Tensor) and t.requires_grad]  # fmt: skip
        if outs and ins:
            slopes = [torch.ones_like(t) for t in outs]
            torch.autograd.grad(outs, ins, slopes, allow_unused=True)
    return recorder.calls


# --- lowering and compiling ---


@dataclasses.dataclass
class Lowered:
    """A call as a program over arrays: its tensors, its lifted numbers, its results."""

    call: Call
    program: Program[Kernel]
    tensors: list[torch.Tensor]
    outputs: list[torch.Tensor | None]


def lower_call(call: Call, lift: bool = True) -> Lowered:
    """Raises NoLowering. Floats are lifted unless the rule needs their value."""
    tensors: list[torch.Tensor] = []

    def uop(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            shape = tuple(value.shape)
            flat = buffer_param(len(tensors) - 1, DTYPES[value.dtype], max(1, value.numel()))
            return flat.reshape(shape) if value.numel() else _empty(shape, DTYPES[value.dtype])
        if lift and isinstance(value, float) and value not in (0.0, 1.0, -1.0):
            tensors.append(torch.tensor([value], dtype=torch.float64))
            return Lifted(buffer_param(len(tensors) - 1, dtypes.float64, 1).reshape(()), float)
        return value

    args, kwargs = pytree.tree_map(uop, (call.args, call.kwargs))
    try:
        results = lower(call.op, args, kwargs).results
    except NoLowering as no:
        if lift and "value" in no.why:
            return lower_call(call, lift=False)
        raise
    expected = call.results
    assert len(results) == len(expected), f"{len(results)} results for {len(expected)}"
    buffers = [(DTYPES[t.dtype], max(1, t.numel())) for t in tensors]
    outputs: list[torch.Tensor | None] = []
    values: dict[int, UOp] = {}
    for result, wanted in zip(results, expected, strict=True):
        assert (result is None) == (wanted is None), "a result is missing"
        if result is None:
            outputs.append(None)
            continue
        assert tuple(result.shape) == tuple(wanted.shape), f"shape {result.shape} {wanted.shape}"
        assert result.dtype == DTYPES[wanted.dtype], f"dtype {result.dtype} for {wanted.dtype}"
        outputs.append(torch.zeros_like(wanted, memory_format=torch.contiguous_format))
        if wanted.numel():
            values[len(buffers)] = result.reshape((-1,))
        buffers.append((result.dtype, max(1, wanted.numel())))
    return Lowered(call, codegen.generate(buffers, values, variant="separate"), tensors, outputs)


def _empty(shape: tuple[int, ...], dtype: Any) -> UOp:
    return UOp.const(0, dtype).reshape((1,) * len(shape)).expand(shape)


def run_all(many: list[Lowered]) -> Iterator[tuple[Lowered, str]]:
    """Compiles all programs in one call of gcc; gives each with what is wrong with it."""
    heads: set[str] = set()
    bodies: list[str] = []
    programs: list[Program[Kernel]] = []
    for number, one in enumerate(many):
        program = one.program
        if not program.kernels:
            programs.append(program)
            continue
        head = program.source[: program.source.index(program.kernels[0].source)]
        heads.update(head.replace(c_math.HELPERS, "").splitlines())
        kernels: list[Kernel] = []
        for kernel in program.kernels:
            name = f"p{number}_{kernel.name}"
            if all(name != other.name for other in kernels):  # kernels may share a function
                bodies.append(re.sub(rf"\b{kernel.name}(?=(_\w+)?\()", name, kernel.source))
            kernels.append(dataclasses.replace(kernel, name=name))
        programs.append(dataclasses.replace(program, kernels=tuple(kernels)))
    include = [line for line in heads if line.startswith("#")]
    rest = sorted(heads - set(include))
    source = "\n".join(["#include <stdint.h>", *include, *rest, c_math.HELPERS, *bodies])
    library = _compiled(source)
    for one, program in zip(many, programs, strict=True):
        arrays = [_array(t) for t in (*one.tensors, *one.outputs) if t is not None]
        compiled_program.run(program, library, arrays)
        yield one, _difference(one)


def _compiled(source: str) -> ctypes.CDLL:
    command = codegen.GCC
    codegen.GCC = ["-O1" if flag == "-O3" else flag for flag in command]
    try:
        return compiled_program.loaded(source)
    finally:
        codegen.GCC = command


def _array(tensor: torch.Tensor) -> Any:
    tensor = torch.zeros(1) if tensor.numel() == 0 else tensor
    flat = tensor.reshape(-1)
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy()


# Which of several equal elements is meant is left open.
_TIES = {"aten::sort", "aten::topk", "aten::kthvalue", "aten::median.dim", "aten::nanmedian.dim"}
# The CPU leaves others of their results as memory was.
_UNINITIALIZED = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}


def _difference(one: Lowered) -> str:
    compared = 1 if one.call.op in _TIES | _UNINITIALIZED else len(one.outputs)
    for number, (ours, theirs) in enumerate(zip(one.outputs, one.call.results, strict=True)):
        if ours is None or theirs is None or number >= compared:
            continue
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=False)
        except AssertionError as error:
            if not _is_as_exact(one.call, number, ours, theirs):
                return str(error).replace("\n", " ")[:300]
    return ""


def _is_as_exact(call: Call, number: int, ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether ours is close to the result in float64, or nearer to it than the CPU's is."""
    if not ours.is_floating_point():
        return False
    exact = _in_double(call)[number]
    is_close = torch.allclose(ours, exact.to(ours.dtype), 1.3e-6, 1e-5)
    return is_close or largest_error(ours, exact) <= largest_error(theirs, exact)


def _in_double(call: Call) -> list[Any]:
    def wider(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        return value.double() if is_float else value

    name, _, overload = call.op.removeprefix("aten::").partition(".")
    func = getattr(getattr(torch.ops.aten, name), overload or "default")
    args, kwargs = pytree.tree_map(wider, (call.args, call.kwargs))
    return _expected(call.op, func, args, kwargs, func(*args, **kwargs))


# --- programs ---


def train(model: torch.nn.Module, inputs: Any, targets: Any, optimizer: Any) -> list[Call]:
    """Two steps: the second finds the optimizer's state in place."""
    torch.manual_seed(0)
    with Recorder() as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return list({call.key: call for call in recorder.calls}.values())


class Block(torch.nn.Module):
    """A transformer layer over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(11, 8)
        self.places = torch.nn.Embedding(6, 8)
        self.first, self.second = torch.nn.LayerNorm(8), torch.nn.LayerNorm(8)
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.wide, self.narrow = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        n, t = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(t))
        q, k, v = (y.view(n, t, 2, 4).transpose(1, 2) for y in self.qkv(self.first(x)).split(8, 2))
        scores = q @ k.transpose(-1, -2) * 0.5
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, 8))
        x = x + self.narrow(torch.nn.functional.gelu(self.wide(self.second(x)), approximate="tanh"))
        return self.head(x).flatten(0, 1)


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Tanh(),
        torch.nn.Linear(16, 5),
    )  # fmt: skip


def _cnn() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.SiLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(4, 6, 3, stride=2, padding=1), torch.nn.GELU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 5),
    )  # fmt: skip


_OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, weight_decay=0.1),
    "adam capturable": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam fused amsgrad": lambda p: torch.optim.Adam(
        p, lr=1e-2, fused=True, amsgrad=True, weight_decay=0.1
    ),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "adamax": lambda p: torch.optim.Adamax(p, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, foreach=True),
    "radam": lambda p: torch.optim.RAdam(p, foreach=True),
    "lion-like": lambda p: torch.optim.Rprop(p, foreach=True),
}


def program_calls() -> dict[str, list[Call]]:
    torch.manual_seed(0)
    ids = torch.randint(11, (3, 6))
    found: dict[str, list[Call]] = {}
    for name, make in _OPTIMIZERS.items():
        model = _mlp()
        found[f"mlp {name}"] = train(
            model, torch.randn(8, 6), torch.randint(5, (8,)), make(model.parameters())
        )
    model, cnn = Block(), _cnn()
    adam = _OPTIMIZERS["adamw fused"]
    found["transformer"] = train(model, ids, ids.flatten(), adam(model.parameters()))
    found["cnn"] = train(
        cnn, torch.randn(4, 2, 8, 8), torch.randint(5, (4,)), adam(cnn.parameters())
    )
    return found


def test_training_lowers_completely() -> None:
    calls = {c.key: c for calls in program_calls().values() for c in calls}
    lowered = [lower_call(call) for call in calls.values()]
    found = run_all(lowered)
    wrong = [f"{one.call.key[:200]}: {bad}" for one, bad in found if bad]
    assert not wrong, "\n".join(wrong)


# --- op_db ---


def _largest_calls(dtype: torch.dtype, backward: bool) -> list[Call]:
    """One call per aten operator: the one with the most elements that is still quick."""
    best: dict[str, tuple[int, Call]] = {}
    for op in op_db:
        if dtype not in op.supported_dtypes("cpu") or op.name.startswith("jiterator"):
            continue
        for call in record(op, dtype, 2, backward):
            name = call.op.removeprefix("aten::")
            # Moving elements is the same for all; factorizations are unique up to
            # signs, which test_linalg_uops.py knows.
            factors = name in linalg.TABLE or name in spectral.TABLE
            if factors or (not backward and name in movement.TABLE):
                continue
            tensors = [t for t in pytree.tree_leaves((call.args, call.kwargs, call.results))
                       if isinstance(t, torch.Tensor)]  # fmt: skip
            size = sum(t.numel() for t in tensors)
            if size < 1000 and size > best.get(call.op, (-1, call))[0]:
                best[call.op] = size, call
    return [call for _, call in best.values()]


@pytest.mark.parametrize(
    ("dtype", "backward"),
    [(torch.float32, True), (torch.bfloat16, False), (torch.int64, False), (torch.bool, False)],
    ids=str,
)
def test_operators_agree_with_the_cpu(dtype: torch.dtype, backward: bool) -> None:
    lowered, missing = [], []
    for call in _largest_calls(dtype, backward):
        try:
            lowered.append(lower_call(call))
        except NoLowering:
            missing.append(call.op)
    wrong = [f"{one.call.key[:200]}: {bad}" for one, bad in run_all(lowered) if bad]
    assert not wrong, "\n".join(wrong)
    unknown = set(missing) - NO_LOWERING.keys() - REFUSED.keys()
    assert not unknown, f"no lowering any more: {sorted(unknown)}"
