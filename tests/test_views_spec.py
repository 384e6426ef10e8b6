"""ViewSpec against as_strided on the CPU: reads, writes and the way back from movement ops."""

import random

import compiled_program
import numpy as np
import pytest
import torch

from torch_tiny.engine import codegen
from torch_tiny.uops import UOp, buffer_param, dtypes
from torch_tiny.views import ViewSpec, from_movement, read, write

LENGTH = 60


def random_spec(rng: random.Random) -> ViewSpec:
    """Any view of LENGTH elements: dense, strided, broadcast, overlapping, empty, scalar."""
    while True:
        ndim = rng.randint(0, 4)
        shape = tuple(rng.choice([0, 1, 1, 2, 3, 4, 5] if ndim < 3 else [1, 2, 3])
                      for _ in range(ndim))  # fmt: skip
        strides = tuple(rng.choice([0, 1, 1, 2, 3, 4, 5, 6, 10, 12, 20, 30]) for _ in shape)
        if rng.random() < 0.5:
            strides = ViewSpec.contiguous(tuple(n + rng.randint(0, 2) for n in shape)).strides
        order = rng.sample(range(ndim), ndim)
        shape, strides = tuple(shape[d] for d in order), tuple(strides[d] for d in order)
        room = LENGTH - 1 - sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
        if room >= 0:
            return ViewSpec(shape, strides, rng.choice([0, room, rng.randint(0, room)]))


def evaluate(values: list[UOp], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    buffers = [(dtypes.float32, t.numel()) for t in inputs]
    buffers += [(dtypes.float32, int(np.prod(v.shape))) for v in values]
    outputs = {len(inputs) + i: v.reshape((-1,)) for i, v in enumerate(values)}
    arrays = [t.numpy() for t in inputs]
    arrays += [np.zeros(size, np.float32) for _, size in buffers[len(inputs) :]]
    program = codegen.generate(buffers, outputs)
    compiled_program.run(program, compiled_program.loaded(program.source), arrays)
    results = zip(arrays[len(inputs) :], values, strict=True)
    return [torch.from_numpy(a).reshape(tuple(v.shape)) for a, v in results]


@pytest.mark.parametrize("seed", range(4))
def test_reads_are_as_strided(seed: int) -> None:
    rng = random.Random(seed)
    specs = [s for s in (random_spec(rng) for _ in range(40)) if 0 not in s.shape]
    base = torch.arange(LENGTH, dtype=torch.float32)
    flat = buffer_param(0, dtypes.float32, LENGTH)
    found = evaluate([read(flat, spec) for spec in specs], [base])
    for spec, value in zip(specs, found, strict=True):
        assert torch.equal(value, base.as_strided(spec.shape, spec.strides, spec.offset)), spec


@pytest.mark.parametrize("seed", range(4))
def test_writes_are_as_strided(seed: int) -> None:
    rng = random.Random(100 + seed)
    specs = [s for s in (random_spec(rng) for _ in range(40)) if 0 not in s.shape]
    base = torch.arange(LENGTH, dtype=torch.float32)
    news = torch.arange(LENGTH * 20, dtype=torch.float32) + 100
    flat = buffer_param(0, dtypes.float32, LENGTH)
    source = buffer_param(1, dtypes.float32, LENGTH * 20)
    values = []
    for spec in specs:
        n = int(np.prod(spec.shape))
        values.append(write(flat, spec, source.shrink(((0, n),)).reshape(spec.shape)))
    for spec, value in zip(specs, evaluate(values, [base, news]), strict=True):
        wanted = base.clone()
        _write_in_order(wanted, spec, news)
        assert torch.equal(value, wanted), spec


def _write_in_order(base: torch.Tensor, spec: ViewSpec, news: torch.Tensor) -> None:
    """Element by element, as PyTorch itself refuses to write through a broadcast."""
    for i, index in enumerate(np.ndindex(*spec.shape)):
        at = spec.offset + sum(k * s for k, s in zip(index, spec.strides, strict=True))
        base[at] = news[i]


@pytest.mark.parametrize("seed", range(4))
def test_movement_ops_are_found_again(seed: int) -> None:
    rng = random.Random(200 + seed)
    places = torch.arange(LENGTH)
    flat = buffer_param(0, dtypes.float32, LENGTH)
    for _ in range(100):
        spec = random_spec(rng)
        value = read(flat, spec) if 0 not in spec.shape else flat
        found = from_movement(value)
        # No spec where a row past the end had to be padded; no base where elements interleave.
        if found is None or value.base is not flat or value is flat:
            continue
        wanted = places.as_strided(spec.shape, spec.strides, spec.offset)
        assert torch.equal(places.as_strided(found.shape, found.strides, found.offset), wanted)


def test_a_reshape_that_needs_a_copy_has_no_spec() -> None:
    x = buffer_param(0, dtypes.float32, 12).reshape((3, 4))
    assert from_movement(x.permute((1, 0)).reshape((12,))) is None
    assert from_movement(x.flip((0,))) is None
    assert from_movement(x.pad(((0, 1), (0, 0)))) is None
    joined = x.reshape((3, 2, 2)).permute((2, 0, 1)).reshape((2, 6))
    assert from_movement(joined) == ViewSpec((2, 6), (1, 2), 0)


def test_a_dense_write_reads_nothing_of_the_old() -> None:
    flat = buffer_param(0, dtypes.float32, 12)
    value = buffer_param(1, dtypes.float32, 12).reshape((4, 3))
    assert flat not in write(flat, ViewSpec((4, 3), (1, 4), 0), value).toposort()


def test_empty_views() -> None:
    flat = buffer_param(0, dtypes.float32, 12)
    empty = ViewSpec((3, 0), (1, 1), 0)
    assert read(flat, empty).shape == (3, 0)
    assert write(flat, empty, read(flat, empty)) is flat


def test_an_overlapping_read_is_an_index_not_a_loop() -> None:
    flat = buffer_param(0, dtypes.float32, 12)
    value = read(flat, ViewSpec((5, 4), (2, 1), 0)).reshape((-1,))
    program = codegen.generate([(dtypes.float32, 12), (dtypes.float32, 20)], {1: value})
    assert program.kernels[0].source.count("for (") <= 2
    assert len(program.kernels) == 1
