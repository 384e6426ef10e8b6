"""Linear algebra that PyTorch composes of what some devices do not have: tolerances in the type of
the matrix where there is no float64, least squares whole on portable devices."""

from typing import Any

import torch
from torch import Tensor

from torch_tiny.composed.row import ON_PORTABLE, WITHOUT_DOUBLES, Row

aten = torch.ops.aten
Tolerance = float | Tensor | None

# --- tolerances, which PyTorch makes as float64 tensors ---


def _like(matrix: Tensor, value: float) -> Tensor:
    return torch.full((), value, dtype=matrix.dtype.to_real(), device=matrix.device)


def _usual(matrix: Tensor) -> float:
    """PyTorch's relative tolerance."""
    if matrix.dim() < 2:
        raise RuntimeError("The input tensor must have at least 2 dimensions.")
    return torch.finfo(matrix.dtype.to_real()).eps * max(matrix.shape[-2:])


def _tolerances(matrix: Tensor, absolute: Tolerance, relative: Tolerance) -> tuple[Tensor, Tensor]:
    """A relative one is used where it is given, or no absolute one is."""
    if isinstance(absolute, Tensor) or isinstance(relative, Tensor):
        none = _like(matrix, 0.0)
        if isinstance(relative, Tensor):
            return absolute if isinstance(absolute, Tensor) else none, relative
        usual = _like(matrix, _usual(matrix))
        assert isinstance(absolute, Tensor)
        return absolute, torch.where(absolute.gt(0), none, usual)
    rest = 0.0 if absolute is not None and absolute > 0 else _usual(matrix)
    return _like(matrix, absolute or 0.0), _like(matrix, rest if relative is None else relative)


def _pinv(matrix: Tensor, absolute: Tolerance, relative: Tolerance, hermitian: bool) -> Tensor:
    atol, rtol = _tolerances(matrix, absolute, relative)
    result: Tensor = aten.linalg_pinv.atol_rtol_tensor(
        matrix, atol=atol, rtol=rtol, hermitian=hermitian
    )
    return result


def _pinv_by_tensors(
    matrix: Tensor, absolute: Tensor | None, relative: Tensor | None, hermitian: bool
) -> Any:
    if absolute is not None and relative is not None:
        return aten.linalg_pinv.atol_rtol_tensor._op_dk(
            torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
            matrix, atol=absolute, rtol=relative, hermitian=hermitian,
        )  # fmt: skip
    return _pinv(matrix, absolute, relative, hermitian)


def _pinv_by_one_tensor(matrix: Tensor, relative: Tensor, hermitian: bool) -> Tensor:
    """A Python number comes as a float64 tensor of the CPU."""
    none = _like(matrix, 0.0)
    return _pinv(matrix, none, relative.to(none.device, none.dtype), hermitian)


def _rank(matrix: Tensor, absolute: Tolerance, relative: Tolerance, hermitian: bool) -> Tensor:
    atol, rtol = _tolerances(matrix, absolute, relative)
    if matrix.numel() == 0:
        return torch.zeros(matrix.shape[:-2], dtype=torch.int64, device=matrix.device)
    sizes = torch.linalg.eigvalsh(matrix).abs() if hermitian else torch.linalg.svdvals(matrix)
    least = torch.maximum(atol.unsqueeze(-1), sizes.amax(-1, True) * rtol.unsqueeze(-1))
    rank: Tensor = sizes.gt(least).sum(-1)
    return rank


# --- least squares, which PyTorch makes of its out= form ---

# The driver that has a lowering: it says neither residuals nor singular values.
_PLAIN = "gelsy"


def _least_squares(a: Tensor, b: Tensor, rcond: float | None, driver: str | None) -> Any:
    if driver in (None, _PLAIN):
        return NotImplemented
    if driver not in ("gels", "gelsd", "gelss") or a.numel() == 0:
        return aten.linalg_lstsq.default._op_dk(
            torch._C.DispatchKey.CompositeExplicitAutograd, a, b, rcond, driver=driver
        )
    x, residuals, rank, values = aten.linalg_lstsq.default(a, b, rcond, driver=_PLAIN)
    rows, columns = a.shape[-2:]
    if rows > columns and (driver == "gels" or bool(rank.eq(columns).all().item())):
        is_vector = x.dim() < a.dim()
        found, right = (x.unsqueeze(-1), b.unsqueeze(-1)) if is_vector else (x, b)
        residuals = (a @ found - right).square().sum(-2)
    if driver == "gels":
        return x, residuals, rank.new_empty(0), values
    return x, residuals, rank, torch.linalg.svdvals(a)


def _cholesky(matrix: Tensor, upper: bool) -> Any:
    """The old factorization, which raises while it runs."""
    if matrix.dim() < 2 or matrix.size(-1) != matrix.size(-2) or matrix.numel() == 0:
        return NotImplemented
    factor, info = torch.linalg.cholesky_ex(matrix, upper=upper)
    aten._linalg_check_errors(info, "cholesky", is_matrix=matrix.dim() == 2)
    return factor


def _addbmm(x: Tensor, left: Tensor, right: Tensor, beta: complex, alpha: complex) -> Any:
    """In place it makes a tensor of one element as large as the product."""
    is_batch = left.dim() == right.dim() == 3
    if not is_batch or x.shape == (left.size(1), right.size(2)):
        return NotImplemented
    result = torch.addbmm(x, left, right, beta=beta, alpha=alpha)
    return x.resize_(result.shape).copy_(result)


TABLE = (
    Row("aten::linalg_pinv", WITHOUT_DOUBLES, lambda x, relative, h: _pinv(x, 0.0, relative, h)),
    Row("aten::linalg_pinv.rcond_tensor", WITHOUT_DOUBLES, _pinv_by_one_tensor),
    Row("aten::linalg_pinv.atol_rtol_float", WITHOUT_DOUBLES, _pinv),
    Row("aten::linalg_pinv.atol_rtol_tensor", WITHOUT_DOUBLES, _pinv_by_tensors),
    Row("aten::linalg_matrix_rank", WITHOUT_DOUBLES, lambda x, tol, h: _rank(x, tol, 0.0, h)),
    Row("aten::linalg_matrix_rank.atol_rtol_float", WITHOUT_DOUBLES, _rank),
    Row("aten::linalg_matrix_rank.atol_rtol_tensor", WITHOUT_DOUBLES, _rank),
    Row("aten::linalg_lstsq", ON_PORTABLE, _least_squares),
    Row("aten::cholesky", ON_PORTABLE, _cholesky),
    Row("aten::addbmm_", ON_PORTABLE, _addbmm),
)
