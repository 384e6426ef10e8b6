"""Eigenvalues and singular values of matrices that are turned in blocks, on each kind of device."""

import pytest
from harness import needs_cpu_memory, needs_tiny, python
from test_derivatives_linalg import KINDS

from torch_tiny.hosts import why_no_portable

pytestmark = [needs_tiny, needs_cpu_memory]  # the devices are those of the processes

PROGRAM = """
import torch
from torch import linalg

def hard(n):
    "At random, with many equal values of both signs, nearly of rank 8, graded, and zero."
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, n, generator=generator, dtype=torch.float64)
    q, i = linalg.qr(x)[0], torch.arange(n, dtype=torch.float64)
    spectra = [i % 2 * 2 - 1, (i < 8) * (1 + i), 10 ** (-i / 8), i * 0]
    matrices = torch.stack([x + x.mT, *((q * values) @ q.mT for values in spectra)])
    return ((matrices + matrices.mT) / 2).float()

def distances(x, rows, columns, s, sign):
    "From being the matrix, from being orthogonal, and from the values; relative to the norm."
    rows, columns, s = rows.cpu().to(x.dtype), columns.cpu().to(x.dtype), s.cpu().double()
    assert (s.diff() * sign >= 0).all()
    size, k = linalg.matrix_norm(x, 2).clamp_min(1).amax(), s.shape[-1]
    built = (rows[..., :k] * s[..., None, :]) @ columns[..., :k, :]
    exact = linalg.eigvalsh(x) if sign > 0 else linalg.svdvals(x)
    unit = [m @ m.mH - torch.eye(m.shape[-2]) for m in (rows.mH, columns)]
    return torch.stack([y.abs().max() for y in ((built - x) / size, *unit, (s - exact) / size)])

def check(of, x, *how):
    exact = x.to(torch.complex128 if x.is_complex() else torch.float64)
    ours, theirs = of(x.to("tiny"), exact, *how), of(x, exact, *how)
    assert (ours <= 3 * theirs + 1e-6).all(), (of.__name__, ours, theirs)

def eigh(x, exact):
    values, vectors = linalg.eigh(x)
    assert (linalg.eigvalsh(x, UPLO="U") - values).abs().max() <= 2e-6 * values.abs().max()
    return distances(exact, vectors, vectors.mH, values, 1)

def svd(x, exact, full):
    u, s, vh = linalg.svd(x, full_matrices=full)
    assert (linalg.svdvals(x) - s).abs().max() <= 2e-6 * s.abs().max()
    return distances(exact, u, vh, s, -1)

x = hard(97)
check(eigh, x)
check(svd, x[:, :, :90], True)
check(svd, x[:, :90], False)
phases = torch.polar(torch.ones(97), torch.arange(97.0))
z = phases[:, None] * x[:3] * phases.conj()
check(eigh, z)
check(svd, z, True)
"""
BAD = """
import torch

for bad in (float("nan"), float("inf")):
    x = torch.eye(97)
    x[3, 2] = bad
    said = []
    for device in ("cpu", "tiny"):
        try:
            [y.cpu() for y in torch.linalg.svd(x.to(device))]
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])
    assert len(said) == 2 and said[0] in said[1], said
"""


@pytest.mark.parametrize("kind", KINDS)
def test_hard_matrices(kind: str) -> None:
    """As precise as LAPACK, in order, and nothing runs on the host."""
    _needs(kind)
    python(PROGRAM, timeout=600, TORCH_TINY_FALLBACK="error", **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_raises(kind: str) -> None:
    _needs(kind)
    python(BAD, timeout=600, **KINDS[kind])


def _needs(kind: str) -> None:
    if kind != "cpu" and (reason := why_no_portable(kind)):
        pytest.skip(f"no {kind}: {reason}; see make devices")
