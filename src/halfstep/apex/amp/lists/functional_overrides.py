"""Functions of `torch.nn.functional`."""

import torch.nn.functional

MODULE = torch.nn.functional

FP16_FUNCS = [
    *("conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("conv_tbc", "linear"),
]
FP16_FUNCS_SINCE = ["scaled_dot_product_attention", "prelu"]

FP32_FUNCS = [
    *("interpolate", "grid_sample"),
    *("softplus", "softmin", "log_softmax", "softmax", "gelu"),
    *("layer_norm", "group_norm", "local_response_norm", "normalize", "cosine_similarity"),
    *("poisson_nll_loss", "cosine_embedding_loss", "cross_entropy", "hinge_embedding_loss"),
    *("kl_div", "l1_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss"),
    *("multilabel_soft_margin_loss", "multi_margin_loss", "nll_loss"),
    *("binary_cross_entropy_with_logits", "smooth_l1_loss", "soft_margin_loss"),
    *("triplet_margin_loss", "ctc_loss"),
]
FP32_FUNCS_SINCE = ["rms_norm", "huber_loss", "gaussian_nll_loss", "pdist"]

CASTS: list[str] = []
CASTS_SINCE = ["bilinear"]

BANNED = (
    "amp does not work out-of-the-box with `F.binary_cross_entropy` or `torch.nn.BCELoss`: a small "
    "probability can be 0 in half precision, and its logarithm -inf, so the input must be a "
    "FloatTensor already. Where a Sigmoid comes right before, write torch.nn.BCEWithLogitsLoss in "
    "place of both, or amp.register_float_function(torch, 'sigmoid') before amp.initialize; "
    "amp.init(allow_banned=True) casts to fp32 instead of this error"
)
BANNED_FUNCS = [("binary_cross_entropy", BANNED)]
