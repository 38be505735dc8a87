"""CUDA's autocast policy on a CPU, against the table that fake CUDA tensors give anywhere."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from halfstep.kernels import cuda_policy as module
from halfstep.kernels.cuda_policy import cuda_autocast_policy

H, S = torch.float16, torch.float32


def tensor(*shape, dtype=H):
    """Return a marker that `materialised` turns into a positive tensor of one's own device."""
    return ("tensor", shape, dtype)


M, W, V = tensor(4, 4), tensor(4, 4, dtype=S), tensor(4)
B, IMAGE, KERNEL = tensor(2, 4, 4), tensor(1, 4, 8, 8), tensor(4, 4, 3, 3, dtype=S)
LABELS = ("labels", (4,))
CELL = (tensor(4, 4), tensor(8, 4, dtype=S), tensor(8, 4, dtype=S))
aten = torch.ops.aten

CASES = {
    # Lower precision.
    "_convolution": lambda: (
        aten._convolution.default,
        (IMAGE, KERNEL, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True),
    ),
    "_convolution.deprecated": lambda: (
        aten._convolution.deprecated,
        (IMAGE, KERNEL, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True),
    ),
    "convolution": lambda: (
        aten.convolution.default,
        (IMAGE, KERNEL, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ),
    "conv1d": lambda: (F.conv1d, (B, tensor(4, 4, 3, dtype=S))),
    "conv2d": lambda: (F.conv2d, (IMAGE, KERNEL)),
    "conv3d": lambda: (F.conv3d, (tensor(1, 2, 4, 4, 4), tensor(2, 2, 3, 3, 3, dtype=S))),
    "conv_tbc": lambda: (torch.conv_tbc, (tensor(5, 2, 4), tensor(3, 4, 4, dtype=S), tensor(4))),
    "conv_transpose1d": lambda: (F.conv_transpose1d, (B, tensor(4, 4, 3, dtype=S))),
    "conv_transpose2d.input": lambda: (F.conv_transpose2d, (IMAGE, KERNEL)),
    "conv_transpose3d.input": lambda: (
        F.conv_transpose3d,
        (tensor(1, 2, 4, 4, 4), tensor(2, 2, 3, 3, 3, dtype=S)),
    ),
    "prelu": lambda: (F.prelu, (M, tensor(1, dtype=S))),
    "addmm": lambda: (torch.addmm, (M, W, M)),
    "addmv": lambda: (torch.addmv, (V, W, V)),
    "addr": lambda: (torch.addr, (M, V, tensor(4, dtype=S))),
    "matmul": lambda: (torch.matmul, (M, W)),
    "einsum": lambda: (torch.einsum, ("ij,jk", M, W)),
    "mm": lambda: (torch.mm, (M, W)),
    "mv": lambda: (torch.mv, (W, V)),
    "linalg_vecdot": lambda: (torch.linalg.vecdot, (M, W)),
    "linear": lambda: (F.linear, (M, W)),
    "addbmm": lambda: (torch.addbmm, (M, B, tensor(2, 4, 4, dtype=S))),
    "baddbmm": lambda: (torch.baddbmm, (B, B, tensor(2, 4, 4, dtype=S))),
    "bmm": lambda: (torch.bmm, (B, tensor(2, 4, 4, dtype=S))),
    "chain_matmul": lambda: (aten.chain_matmul.default, ([M, W, M],)),
    "linalg_multi_dot": lambda: (torch.linalg.multi_dot, ([M, W, M],)),
    "lstm_cell": lambda: (
        aten.lstm_cell.default,
        (M, [M, M], tensor(16, 4, dtype=S), tensor(16, 4, dtype=S)),
    ),
    "gru_cell": lambda: (
        aten.gru_cell.default,
        (M, M, tensor(12, 4, dtype=S), tensor(12, 4, dtype=S)),
    ),
    "rnn_tanh_cell": lambda: (aten.rnn_tanh_cell.default, (M, M, W, W)),
    "rnn_relu_cell": lambda: (aten.rnn_relu_cell.default, (M, M, W, W)),
    "scaled_dot_product_attention": lambda: (
        F.scaled_dot_product_attention,
        (tensor(1, 2, 4, 8, dtype=S),) * 3,
    ),
    # fp32.
    **{
        name: (lambda name=name: (getattr(torch, name), (M,)))
        for name in [
            "acos",
            "asin",
            "cosh",
            "erfinv",
            "exp",
            "expm1",
            "log",
            "log10",
            "log2",
            "log1p",
            "reciprocal",
            "rsqrt",
            "sinh",
            "tan",
            "sum",
            "prod",
        ]
    },
    "pow.Tensor_Scalar": lambda: (torch.pow, (M, 2)),
    "pow.Tensor_Tensor": lambda: (torch.pow, (M, M)),
    "pow.Scalar": lambda: (torch.pow, (2, M)),
    "softplus": lambda: (F.softplus, (M,)),
    "layer_norm": lambda: (F.layer_norm, (M, (4,))),
    "native_layer_norm": lambda: (torch.native_layer_norm, (M, (4,), None, None, 1e-5)),
    "rms_norm": lambda: (F.rms_norm, (M, (4,))),
    "group_norm": lambda: (F.group_norm, (IMAGE, 2)),
    "frobenius_norm.dim": lambda: (aten.frobenius_norm.dim, (M, [1])),
    "nuclear_norm": lambda: (aten.nuclear_norm.default, (M,)),
    "nuclear_norm.dim": lambda: (aten.nuclear_norm.dim, (M, [0, 1])),
    "cosine_similarity": lambda: (F.cosine_similarity, (M, M)),
    "poisson_nll_loss": lambda: (F.poisson_nll_loss, (M, M)),
    "cosine_embedding_loss": lambda: (F.cosine_embedding_loss, (M, M, V)),
    "nll_loss": lambda: (F.nll_loss, (M, LABELS)),
    "nll_loss2d": lambda: (F.nll_loss, (tensor(4, 4, 1, 1), ("labels", (4, 1, 1)))),
    "hinge_embedding_loss": lambda: (F.hinge_embedding_loss, (M, M)),
    "kl_div": lambda: (F.kl_div, (M, M)),
    "l1_loss": lambda: (F.l1_loss, (M, M)),
    "smooth_l1_loss": lambda: (F.smooth_l1_loss, (M, M)),
    "huber_loss": lambda: (F.huber_loss, (M, M)),
    "mse_loss": lambda: (F.mse_loss, (M, M)),
    "margin_ranking_loss": lambda: (F.margin_ranking_loss, (V, V, V)),
    "multilabel_margin_loss": lambda: (F.multilabel_margin_loss, (V, LABELS)),
    "soft_margin_loss": lambda: (F.soft_margin_loss, (M, M)),
    "triplet_margin_loss": lambda: (F.triplet_margin_loss, (M, M, M)),
    "multi_margin_loss": lambda: (F.multi_margin_loss, (M, LABELS)),
    "binary_cross_entropy_with_logits": lambda: (F.binary_cross_entropy_with_logits, (M, M)),
    "dist": lambda: (torch.dist, (M, M)),
    "pdist": lambda: (F.pdist, (M,)),
    "cdist": lambda: (torch.cdist, (M, M)),
    "renorm": lambda: (torch.renorm, (M, 2, 0, 1.0)),
    "logsumexp": lambda: (torch.logsumexp, (M, 1)),
    "linalg_matrix_sqrth": lambda: (aten.linalg_matrix_sqrth.default, (M,)),
    "softmax.int": lambda: (torch.softmax, (M, 1)),
    "log_softmax.int": lambda: (torch.log_softmax, (M, 1)),
    "cumprod": lambda: (torch.cumprod, (M, 1)),
    "cumsum": lambda: (torch.cumsum, (M, 1)),
    "prod.dim_int": lambda: (torch.prod, (M, 1)),
    "sum.dim_IntList": lambda: (torch.sum, (M, [1])),
    "linalg_vector_norm": lambda: (torch.linalg.vector_norm, (M,)),
    "linalg_matrix_norm": lambda: (aten.linalg_matrix_norm.default, (M, 1.0)),
    "linalg_matrix_norm.str_ord": lambda: (aten.linalg_matrix_norm.str_ord, (M,)),
    "norm.Scalar": lambda: (aten.norm.Scalar, (M, 2)),
    "norm.ScalarOpt_dim": lambda: (aten.norm.ScalarOpt_dim, (M, 2, [1])),
    **{
        name: (
            lambda name=name, size=size: (
                getattr(aten, name).default,
                (tensor(1, 2, *size[0]), *size[1]),
            )
        )
        for name, size in {
            "upsample_nearest1d": ((4,), ([8],)),
            "_upsample_nearest_exact1d": ((4,), ([8],)),
            "upsample_nearest2d": ((4, 4), ([8, 8],)),
            "_upsample_nearest_exact2d": ((4, 4), ([8, 8],)),
            "upsample_nearest3d": ((4, 4, 4), ([8, 8, 8],)),
            "_upsample_nearest_exact3d": ((4, 4, 4), ([8, 8, 8],)),
            "upsample_linear1d": ((4,), ([8], False)),
            "upsample_bilinear2d": ((4, 4), ([8, 8], False)),
            "_upsample_bilinear2d_aa": ((4, 4), ([8, 8], False)),
            "upsample_trilinear3d": ((4, 4, 4), ([8, 8, 8], False)),
            "upsample_bicubic2d": ((4, 4), ([8, 8], False)),
            "_upsample_bicubic2d_aa": ((4, 4), ([8, 8], False)),
        }.items()
    },
    # Widest.
    "addcdiv": lambda: (torch.addcdiv, (M, M, W)),
    "addcmul": lambda: (torch.addcmul, (M, M, W)),
    "atan2": lambda: (torch.atan2, (M, W)),
    "bilinear": lambda: (F.bilinear, (M, M, tensor(3, 4, 4, dtype=S))),
    "cross": lambda: (torch.cross, (tensor(2, 3), tensor(2, 3, dtype=S), 1)),
    "dot": lambda: (torch.dot, (V, tensor(4, dtype=S))),
    "vdot": lambda: (torch.vdot, (V, tensor(4, dtype=S))),
    "grid_sampler": lambda: (torch.grid_sampler, (IMAGE, tensor(1, 4, 4, 2), 0, 0, False)),
    "index_put": lambda: (torch.index_put, (V, (LABELS,), tensor(4, dtype=S))),
    "tensordot": lambda: (aten.tensordot.default, (M, W, [1], [0])),
    "scatter_add": lambda: (torch.scatter_add, (V, 0, LABELS, tensor(4, dtype=S))),
    "binary_cross_entropy": lambda: (F.binary_cross_entropy, (M, M)),
    # In no list of CUDA's, though some are in the CPU's.
    "cat": lambda: (torch.cat, ([M, W],)),
    "stack": lambda: (torch.stack, ([M, W],)),
    "avg_pool3d": lambda: (F.avg_pool3d, (tensor(1, 2, 4, 4, 4), 2)),
    "max_pool3d": lambda: (F.max_pool3d, (tensor(1, 2, 4, 4, 4), 2)),
    "conv2d.padding": lambda: (torch.conv2d, (IMAGE, KERNEL, None, 1, "same")),
    "reflection_pad2d": lambda: (F.pad, (IMAGE, (1, 1, 1, 1), "reflect")),
    "cross_entropy_loss": lambda: (F.cross_entropy, (M, LABELS)),
    "trace": lambda: (torch.trace, (W,)),
    "batch_norm": lambda: (F.batch_norm, (IMAGE, None, None, None, None, True)),
    "gelu": lambda: (F.gelu, (M,)),
    "add": lambda: (torch.add, (M, W)),
}


KNOWN = {
    name.removeprefix("aten::").removesuffix(".default")
    for name in torch._C._dispatch_get_all_op_names()
}
NOT_FAKED = (
    {"_convolution", "_convolution.deprecated", "lstm_cell", "gru_cell"}
    if torch.__version__ < "2.15"
    else set()
)


def materialised(tree, device):
    """Turn markers into tensors on `device`, values between 0.1 and 0.9."""
    if isinstance(tree, tuple) and tree and tree[0] == "tensor":
        size = torch.Size(tree[1])
        values = torch.linspace(0.1, 0.9, size.numel()).reshape(size)
        return values.to(tree[2]).to(device)
    if isinstance(tree, tuple) and tree and tree[0] == "labels":
        return torch.zeros(tree[1], dtype=torch.int64).to(device)
    if isinstance(tree, (tuple, list)):
        return type(tree)(materialised(each, device) for each in tree)
    return tree


@contextmanager
def autocast(device, dtype):
    """Enable autocast by its switches; `torch.autocast("cuda")` wants a real device."""
    before = torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)  # noqa: FBT003  # torch takes no keyword
    torch.set_autocast_dtype(device, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)  # noqa: FBT003
        torch.set_autocast_dtype(device, before)


def outcome(case, device, dtype):
    """Return the formats of what an operator gives under autocast, or that it is refused."""
    function, arguments = case()
    given = materialised(arguments, device)
    if dtype != H:
        given = tree_map(
            lambda leaf: leaf.to(dtype) if getattr(leaf, "dtype", 0) == H else leaf, given
        )
    try:
        with autocast(device, dtype):
            result = function(*given)
    except RuntimeError as error:
        if "unsafe" not in str(error):
            raise
        return "refused"
    return [leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@pytest.fixture(autouse=True, scope="module")
def _policy():
    with cuda_autocast_policy():
        yield


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_formats_are_those_of_cuda(name, dtype):
    if name not in KNOWN:
        pytest.skip(f"torch {torch.__version__} has no such operator")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            expected = outcome(CASES[name], "cuda", dtype)
    except (RuntimeError, AttributeError) as error:
        # What torch 2.11's fake tensors cannot run; those of later versions can.
        if name not in NOT_FAKED:
            raise
        pytest.skip(f"torch {torch.__version__} cannot fake it: {error}")
    assert outcome(CASES[name], "cpu", dtype) == expected


@pytest.mark.parametrize("key", ["AutocastCUDA", "AutocastCPU"])
def test_operators_listed_are_those_with_a_kernel(key):
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    named = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    assert module._listed(key) == {n[len("aten::") :] for n in named if has_kernel(n, key)}


def test_every_operator_of_cudas_lists_is_compared():
    on_cuda = module._listed("AutocastCUDA") - module._OF_CUDNN
    # The overloads of named tensors, which are gone from later versions.
    named = {name for name in on_cuda if "imname" in name or ".names_" in name}
    assert on_cuda - named <= CASES.keys()
