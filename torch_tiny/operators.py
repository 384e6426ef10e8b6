"""What is special of PyTorch's operators and does not follow from their schemas, or from a tag.

The core knows no operator by name: it is told this when it starts. `*` stands for anything, at an
end of a name.
"""

TRAITS: dict[str, tuple[str, ...]] = {
    # The same for each place of its lists of tensors.
    "is_listwise": ("aten::_foreach_*",),
    # A copy: its source may be anywhere.
    "takes_cpu_tensors": ("aten::copy_",),
    # Composites that look at the type of the device and know only PyTorch's own; addr_ tells by the
    # address of its out= that it is in place, which is lost on the way.
    "chooses_by_device": (
        *("aten::convolution", "aten::convolution_backward", "aten::mode.values"),
        *("aten::conj_physical_", "aten::addr_"),
    ),
    # Results are as large as the data says, which torch 2.11 does not say of it.
    "is_sized_by_data": ("aten::_unique",),
    # Or it would, but comes here with the one driver whose results are always as large.
    "is_sized_by_shapes": ("aten::linalg_lstsq",),
    # Raises, or has other results, where its data is made up.
    "needs_real_data": ("aten::segment_reduce",),
    # Raises where a number is negative.
    "checks_signs": (
        *("aten::huber_loss*", "aten::smooth_l1_loss*", "aten::softshrink*", "aten::renorm*"),
        *("aten::elu_backward*", "aten::leaky_relu_backward*", "aten::_cdist_forward*"),
        *("aten::_pdist_forward*", "aten::embedding_renorm_*", "aten::histc*", "aten::norm.*"),
        *("aten::linalg_vector_norm*", "aten::_foreach_norm*", "aten::dist*"),
    ),
    # Whether to save what only a backward pass needs.
    "asks_grad_mode": ("aten::mkldnn_rnn_layer",),
    # Of weights that are not in one piece, which only plain CUDA has.
    "warns_in_vain": ("aten::_cudnn_rnn",),
    # Behind it are libraries of matrix products and networks, which have switches of their own.
    "asks_products": (
        *("*mm*", "*mv*", "*dot*", "*matmul*", "*einsum*", "*linear*", "*attention*", "*conv*"),
        *("*lstm*", "*gru*", "*rnn*", "*cdist*", "*linalg*", "*solve*", "*cholesky*", "*inverse*"),
        *("*pool*", "*_norm*", "*ctc_loss*", "*grid_sampler*", "*transformer*"),
    ),
    # Networks that choose an attention inside of their kernel.
    "asks_attention": (
        "aten::_native_multi_head_attention",
        "aten::_transformer_encoder_layer_fwd",
    ),
    # cuSOLVER waits for the device, which the capture of a CUDA graph does not survive; nor does
    # its handle survive that.
    "waits_for_device": (
        *("aten::linalg_*", "aten::_linalg_*", "aten::cholesky*", "aten::lu_*", "aten::geqrf*"),
        *("aten::ormqr*", "aten::triangular_solve*"),
    ),
    # Products that oneDNN can compute as well, alone or added to the first argument.
    "multiplies": ("aten::mm", "aten::bmm"),
    "adds_product": ("aten::addmm", "aten::baddbmm"),
}
