"""The kinds of all operators except products, by the operators' names in ATen."""

from __future__ import annotations

_NORMS = {
    "native_batch_norm",
    "cudnn_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm_backward",
    "cudnn_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
}
_ROW_NORMS = {
    "native_layer_norm",
    "native_layer_norm_backward",
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "linalg_vector_norm",
    "_weight_norm_interface",
    "_weight_norm_interface_backward",
}
_SOFTMAX = {
    "_softmax",
    "_safe_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "nll_loss_forward",
    "nll_loss_backward",
    "nll_loss2d_forward",
    "nll_loss2d_backward",
    "binary_cross_entropy_with_logits",
}
_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "std", "std_mean", "any", "all",
    "prod", "argmax", "argmin", "norm", "logsumexp", "cumsum", "cumprod", "topk", "sort", "aminmax",
    "_foreach_norm", "_cdist_forward", "_cdist_backward", "mse_loss", "smooth_l1_loss", "median",
    "count_nonzero", "kthvalue", "nansum",
}  # fmt: skip
_COPIES = {
    "_to_copy", "clone", "copy_", "cat", "stack", "constant_pad_nd", "roll", "flip", "repeat",
    "contiguous", "zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like",
    "new_zeros", "new_full", "new_ones", "slice_backward", "select_backward", "slice_scatter",
    "select_scatter", "reflection_pad2d", "replication_pad2d", "reflection_pad2d_backward",
    "unfold_backward", "diagonal_backward", "as_strided_scatter", "tril", "triu", "arange",
    "linspace", "scalar_tensor", "_pin_memory", "expand_copy", "split_with_sizes_copy", "one_hot",
    "as_strided_copy", "eye", "_reshape_copy", "replication_pad2d_backward", "channel_shuffle",
    "pixel_shuffle", "pixel_unshuffle", "rot90", "empty_permuted", "fill", "zero", "lift",
    "isin", "searchsorted", "bucketize", "tril_indices", "triu_indices",
}  # fmt: skip
_RANDOM = {
    "bernoulli_", "bernoulli", "native_dropout", "native_dropout_backward", "rand", "randn",
    "uniform_", "normal_", "rand_like", "randn_like", "random_", "randint", "randperm",
    "exponential_", "geometric_", "multinomial", "log_normal_",
}  # fmt: skip
_POOLS = {
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
    "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "avg_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool2d_backward", "upsample_nearest2d",
    "upsample_nearest2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward",
    "upsample_bicubic2d", "upsample_bicubic2d_backward", "_upsample_bilinear2d_aa", "avg_pool3d",
    "max_pool3d_with_indices", "max_pool3d_with_indices_backward", "avg_pool3d_backward",
    "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward", "im2col", "col2im",
    "_upsample_bicubic2d_aa", "upsample_nearest1d", "upsample_nearest1d_backward",
    "upsample_linear1d", "upsample_linear1d_backward", "grid_sampler_2d",
    "grid_sampler_2d_backward", "fractional_max_pool2d", "max_unpool2d",
}  # fmt: skip
_INDEXED = {
    "embedding", "embedding_dense_backward", "index", "index_put", "index_put_", "index_select",
    "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add", "index_add_",
    "_index_put_impl_", "masked_select", "nonzero", "take", "index_copy", "index_copy_",
    "masked_scatter", "scatter_reduce", "scatter_reduce_", "_embedding_bag", "index_fill",
    "index_fill_", "index_reduce_", "_unsafe_index", "_unsafe_index_put", "segment_reduce",
    "bincount", "unique_dim", "_unique2",
}  # fmt: skip
# Pointwise operators that PyTorch does not tag as pointwise.
_POINTWISE = {
    "threshold_backward", "gelu_backward", "silu_backward", "hardtanh_backward", "lerp_",
    "hardswish", "hardswish_backward", "hardsigmoid_backward", "elu_backward",
    "leaky_relu_backward", "sigmoid_backward", "tanh_backward", "mish_backward",
    "softplus_backward", "glu", "glu_backward",
    "_prelu_kernel", "_prelu_kernel_backward", "log_sigmoid_forward", "log_sigmoid_backward",
    "_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_", "where", "masked_fill",
    "_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_", "clamp_",
    "mse_loss_backward", "smooth_l1_loss_backward", "masked_fill_", "dropout",
    "logit_backward", "softshrink_backward",
    "hardshrink", "hardshrink_backward", "huber_loss", "huber_loss_backward", "lerp",
    "rrelu_with_noise", "cross", "linalg_cross", "celu", "addcmul_", "addcdiv_", "complex",
    "_conj_physical", "polar", "view_as_real_copy",
}  # fmt: skip

KIND_OF = {
    **dict.fromkeys(_NORMS, "norm"),
    **dict.fromkeys(_ROW_NORMS, "row norm"),
    **dict.fromkeys(_SOFTMAX, "softmax"),
    **dict.fromkeys(_REDUCTIONS, "reduction"),
    **dict.fromkeys(_COPIES, "copy"),
    **dict.fromkeys(_RANDOM, "pointwise"),
    **dict.fromkeys(_POOLS, "pool"),
    **dict.fromkeys(_INDEXED, "index"),
    **dict.fromkeys(_POINTWISE, "pointwise"),
}
NOTHING = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "device",
    "promote_types", "_local_scalar_dense", "_unsafe_view", "lift_fresh", "is_same_size", "set_",
    "_has_same_storage_numel", "_record_function_enter_new", "_record_function_exit", "resize_",
    "is_pinned", "_assert_async", "_assert_tensor_metadata", "is_nonzero", "_reshape_alias",
    "size", "stride", "numel", "dim", "is_contiguous", "sym_size", "result_type", "_version",
    "as_strided_", "transpose_", "t_", "squeeze_", "unsqueeze_", "unsafe_split",
    "unsafe_split_with_sizes", "unsafe_chunk",
}  # fmt: skip
"""Operators that launch no kernel."""
