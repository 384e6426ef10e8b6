"""The operators without a lowering, and why: one more, or one that has a lowering now, fails.

With TORCH_TINY_ENGINE=uop they are refused by name.
"""

from torch_tiny.lower import linalg, spectral
from torch_tiny.lower.rule import Rule

_REASONS = {
    "what the result looks like depends on data: they run at once": """
        _linalg_check_errors _unique _unique2 bincount masked_select nonzero
        repeat_interleave.Tensor unique_consecutive
    """,
    "a recursion as long as the data says": """
        _ctc_loss _ctc_loss.Tensor _ctc_loss_backward _ctc_loss_backward.Tensor
    """,
    "LAPACK's, and none of the factorizations that are written in UOps": """
        _linalg_eigvals linalg_eig linalg_ldl_factor_ex linalg_ldl_solve
    """,
    "made of other random operators where numbers are portable": """
        multinomial randperm rrelu_with_noise rrelu_with_noise_
    """,
    "no portable numbers of this distribution": """
        _sample_dirichlet _standard_gamma binomial poisson
    """,
    "rare, and of types that are not compiled": "hash_tensor",
    "PyTorch takes it apart before the device sees it": "linalg_pinv.atol_rtol_tensor",
}
NO_LOWERING = {
    **{f"aten::{name}": why for why, names in _REASONS.items() for name in names.split()},
    **{
        f"torch_nn::_linear_cross_entropy_batch_chunked{kind}": "of PyTorch's Python library"
        for kind in ("", "_no_reduction")
    },
}

# These have a lowering, but not for all that they may be given.
_REFUSED = {
    "numbers of the CPU's own generator are drawn by it": """
        bernoulli_.Tensor bernoulli_.float cauchy_ exponential_ geometric_ log_normal_
        native_dropout normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor normal_
        randperm.generator_out random_
        random_.from random_.to uniform_
    """,
    "a mask as an index gives a result whose size depends on data": "index.Tensor index_put",
    "a recursion as long as the data says": "gcd lcm",
    "an index in the memory of the CPU is no tensor of the device": "_index_put_impl_",
}
REFUSED = {f"aten::{name}": why for why, names in _REFUSED.items() for name in names.split()}

# For these reasons any operator may be refused.
REASONS = {
    "memory seen as two types",
    "a complex value for a real tensor",
    "a write to memory that elements share",
    "an argument of a kind that is not compiled",
}

# These have one for real numbers only.
_REAL_ONLY = "_logcumsumexp cumprod logaddexp logspace.out renorm scatter.reduce"
_MATRICES = {**linalg.TABLE, **spectral.TABLE}
_REAL_MATRICES = [n for n, row in _MATRICES.items() if isinstance(row, Rule) and not row.complex]
REAL_ONLY = {f"aten::{name}" for name in (*_REAL_ONLY.split(), *_REAL_MATRICES)}
