"""O1: what torch's functions and the caller's own do with formats, outside any context."""

import threading
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as programs write it
from torch import nn
from torch.optim import SGD

from halfstep.apex import amp

from .tiny import Net, backward, batch

HALF, FLOAT = torch.float16, torch.float32
x, square = torch.rand(4, 6), torch.rand(6, 6)
image, volume = torch.rand(2, 4, 8, 8), torch.rand(2, 4, 6, 6, 6)

TO_HALF = {
    "conv1d": lambda t: F.conv1d(t(image[0]), torch.rand(3, 8, 2)),
    "conv2d": lambda t: F.conv2d(t(image), torch.rand(3, 4, 2, 2)),
    "conv3d": lambda t: F.conv3d(t(volume), torch.rand(3, 4, 2, 2, 2)),
    "conv_transpose1d": lambda t: F.conv_transpose1d(t(image[0]), torch.rand(8, 3, 2)),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t(image), torch.rand(4, 3, 2, 2)),
    "conv_transpose3d": lambda t: F.conv_transpose3d(t(volume), torch.rand(4, 3, 2, 2, 2)),
    "conv_tbc": lambda t: torch.conv_tbc(t(image[0]), torch.rand(2, 8, 3), torch.rand(3)),
    "linear": lambda t: F.linear(t(x), torch.rand(3, 6), torch.rand(3)),
    "prelu": lambda t: torch.prelu(t(x), torch.rand(1)),
    "F.prelu": lambda t: F.prelu(t(x), torch.rand(1)),
    "addmm": lambda t: torch.addmm(t(x), x, square),
    "addmv": lambda t: torch.addmv(t(x[:, 0]), x, square[0]),
    "addr": lambda t: torch.addr(t(x), x[:, 0], square[0]),
    "matmul": lambda t: torch.matmul(t(x), square),
    "mm": lambda t: t(x).mm(square),
    "mv": lambda t: torch.mv(t(x), square[0]),
    "addbmm": lambda t: torch.addbmm(t(x), x[None], square[None]),
    "baddbmm": lambda t: torch.baddbmm(t(x), x[None], square[None]),
    "bmm": lambda t: torch.bmm(t(x)[None], square[None]),
    "@": lambda t: t(x) @ square,
    "r@": lambda t: square @ t(x).mT,
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(x), square),
    "attention": lambda t: F.scaled_dot_product_attention(t(image), image, image),
}

labels = torch.tensor([0, 1, 2, 3])
signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
TO_FLOAT = {
    "interpolate": lambda t: F.interpolate(t(image), scale_factor=2),
    "grid_sample": lambda t: F.grid_sample(t(image), torch.rand(2, 3, 3, 2), align_corners=False),
    **{
        name: lambda t, name=name: getattr(F, name)(t(x))
        for name in ("softplus", "gelu", "normalize")
    },
    **{
        name: lambda t, name=name: getattr(F, name)(t(x), dim=1)
        for name in ("softmin", "softmax", "log_softmax")
    },
    "layer_norm": lambda t: F.layer_norm(t(x), [6], torch.rand(6)),
    "group_norm": lambda t: F.group_norm(t(image), 2, torch.rand(4)),
    "local_response_norm": lambda t: F.local_response_norm(t(image), 2),
    "cosine_similarity": lambda t: F.cosine_similarity(t(x), x),
    "cross_entropy": lambda t: F.cross_entropy(t(x), labels),
    "nll_loss": lambda t: F.nll_loss(t(x), labels),
    "multilabel_margin_loss": lambda t: F.multilabel_margin_loss(t(x), torch.zeros(4, 6).long()),
    "multi_margin_loss": lambda t: F.multi_margin_loss(t(x), labels),
    **{
        name: lambda t, name=name: getattr(F, name)(t(x), torch.rand(4, 6))
        for name in (
            *("poisson_nll_loss", "l1_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss"),
            *("multilabel_soft_margin_loss", "binary_cross_entropy_with_logits", "huber_loss"),
        )
    },
    "kl_div": lambda t: F.kl_div(t(x), torch.rand(4, 6), reduction="sum"),
    "hinge_embedding_loss": lambda t: F.hinge_embedding_loss(t(x)[:, 0], signs),
    "cosine_embedding_loss": lambda t: F.cosine_embedding_loss(t(x), x, signs),
    "margin_ranking_loss": lambda t: F.margin_ranking_loss(t(x)[:, 0], x[:, 1], signs),
    "triplet_margin_loss": lambda t: F.triplet_margin_loss(t(x), x, x),
    "ctc_loss": lambda t: F.ctc_loss(
        t(torch.rand(6, 2, 5)),
        torch.ones(2, 3).long(),
        torch.tensor([6, 6]),
        torch.tensor([3, 3]),
    ),
    **{
        name: lambda t, name=name: getattr(torch, name)(t(x))
        for name in (
            *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2"),
            *("reciprocal", "rsqrt", "sinh", "tan", "norm", "prod", "std", "sum", "var", "log1p"),
        )
    },
    **{
        f"Tensor.{name}": lambda t, name=name: getattr(t(x), name)()
        for name in ("exp", "log", "norm", "prod", "std", "sum", "var", "cpu")
    },
    **{
        name: lambda t, name=name: getattr(torch, name)(t(x), 1)
        for name in ("cumprod", "cumsum", "logsumexp", "softmax", "log_softmax", "pow")
    },
    "Tensor.softmax": lambda t: t(x).softmax(1),
    "Tensor.pow": lambda t: t(x).pow(2.0),
    "**": lambda t: t(x) ** 2.0,
    "r**": lambda t: 2.0 ** t(x),
    "dist": lambda t: torch.dist(t(x), x),
    "renorm": lambda t: torch.renorm(t(x), 2, 0, 1.0),
    "cdist": lambda t: torch.cdist(t(x), x),
}

PAIRS = {
    "atan2": torch.atan2,
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    **{f"Tensor.{name}": getattr(torch.Tensor, name) for name in ("add", "mul", "div")},
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack((a, b)),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "cross": lambda a, b: torch.cross(a[:, :3], b[:, :3], dim=1),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "bilinear": lambda a, b: torch.bilinear(a, b, torch.rand(2, 6, 6).to(a.dtype), None),
    "F.bilinear": lambda a, b: F.bilinear(a, b, torch.rand(2, 6, 6).to(a.dtype), None),
}
SAME = {
    "relu": lambda t: F.relu(t(x)),
    "max_pool2d": lambda t: F.max_pool2d(t(image), 2),
    "batch_norm": lambda t: F.batch_norm(t(image), torch.zeros(4), torch.ones(4), training=True),
    "mean": lambda t: t(x).mean(),
}


@pytest.fixture
def o1():
    return amp.init()


def as_half(tensor):
    return tensor.half()


def as_float(tensor):
    return tensor.clone()


@pytest.mark.parametrize("given", [as_half, as_float])
@pytest.mark.parametrize("name", TO_HALF)
def test_products_and_convolutions_are_half(o1, name, given):
    assert TO_HALF[name](given).dtype == HALF


@pytest.mark.parametrize("given", [as_half, as_float])
@pytest.mark.parametrize("name", TO_FLOAT)
def test_sums_norms_powers_and_losses_are_single(o1, name, given):
    assert TO_FLOAT[name](given).dtype == FLOAT


@pytest.mark.parametrize("name", SAME)
def test_everything_else_keeps_its_format(o1, name):
    assert SAME[name](as_half).dtype == HALF
    assert SAME[name](as_float).dtype == FLOAT


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_take_the_widest_format(o1, name):
    one, two = torch.rand(4, 6), torch.rand(4, 6)
    call = PAIRS[name]
    assert call(one.half(), two.half()).dtype == HALF
    assert call(one.half(), two).dtype == FLOAT
    if "bilinear" not in name:
        assert call(one, two.half()).dtype == FLOAT


@pytest.mark.parametrize("name", ["eq", "equal", "ge", "gt", "le", "lt", "ne"])
def test_comparisons_are_made_in_the_widest_format(o1, name):
    third = torch.full((1,), 1 / 3)
    compared = getattr(torch, name)(third.half(), third)
    assert bool(compared) == bool(getattr(third.half().double(), name)(third.double()))


def test_a_single_scalar_tensor_widens_a_half_one(o1):
    assert (torch.ones(2).half() * torch.tensor(2.0)).dtype == FLOAT
    assert (torch.ones(2).half() * 2.0).dtype == HALF


def test_double_tensors_are_left_alone(o1):
    double = torch.rand(3).double()
    assert torch.exp(double).dtype == torch.float64
    assert (double * torch.ones(3).half()).dtype == torch.float64


@pytest.mark.parametrize("name", ["add_", "mul_", "div_", "sub_", "addcmul_"])
def test_in_place_arithmetic_keeps_its_own_format(o1, name):
    one = torch.rand(4)
    for first, second in ((one.half(), one), (one.clone(), one.half())):
        changed = getattr(first, name)(*[second] * (2 if name == "addcmul_" else 1))
        assert changed.dtype == first.dtype
        assert changed.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("name", ["__iadd__", "__isub__", "__imul__", "__itruediv__"])
def test_assignment_operators_take_the_widest_format(o1, name):
    half, single = torch.rand(4).half() + 1, torch.rand(4) + 1
    assert getattr(half.clone(), name)(single).dtype == FLOAT
    for first, second in ((single, half), (half, half.clone()), (half, 2.0)):
        changed = getattr(first, name)(second)
        assert changed.dtype == first.dtype
        assert changed.data_ptr() == first.data_ptr()


@pytest.mark.parametrize("name", ["exp_", "log_", "pow_", "cumsum_", "rsqrt_"])
def test_in_place_single_functions_refuse_half(o1, name):
    args = {"pow_": (2,), "cumsum_": (0,)}.get(name, ())
    assert getattr(torch.rand(3), name)(*args).dtype == FLOAT
    with pytest.raises(
        NotImplementedError, match=f"in-place method {name} on fp16 Tensors.*Write x ="
    ):
        getattr(torch.rand(3).half(), name)(*args)
    if hasattr(torch, name) and not args:
        with pytest.raises(NotImplementedError, match=f"function {name} with fp16 arguments"):
            getattr(torch, name)(torch.rand(3).half())


def test_in_place_single_functions_take_half_for_their_other_arguments(o1):
    changed = torch.full((3,), 3.0)
    assert changed.pow_(torch.full((3,), 2.0).half()) is changed
    assert changed.tolist() == [9.0] * 3


def test_binary_cross_entropy_is_refused_for_half_alone(o1):
    p, target = torch.rand(3), torch.rand(3)
    assert F.binary_cross_entropy(p, target).dtype == FLOAT
    for call in (F.binary_cross_entropy, nn.BCELoss()):
        with pytest.raises(NotImplementedError, match="BCEWithLogitsLoss"):
            call(p.half(), target)


def test_binary_cross_entropy_is_single_where_allowed():
    amp.init(allow_banned=True)
    assert F.binary_cross_entropy(torch.rand(3).half(), torch.rand(3)).dtype == FLOAT


@pytest.mark.parametrize("given", [as_half, as_float])
@pytest.mark.parametrize(
    "cell", [nn.RNNCell, partial(nn.RNNCell, nonlinearity="relu"), nn.GRUCell, nn.LSTMCell]
)
def test_rnn_cells_are_half(o1, cell, given):
    module = cell(6, 5)
    out = module(given(x))
    assert (out[0] if isinstance(out, tuple) else out).dtype == HALF


@pytest.mark.parametrize("given", [as_half, as_float])
@pytest.mark.parametrize("class_", [nn.RNN, partial(nn.RNN, nonlinearity="relu"), nn.GRU, nn.LSTM])
@pytest.mark.parametrize("grad", [True, False])
def test_rnns_are_half(o1, class_, given, grad):
    module = class_(6, 5, num_layers=2, bidirectional=True)
    with torch.set_grad_enabled(grad):
        out, _ = module(given(x)[None])
    assert out.dtype == HALF
    packed = nn.utils.rnn.pack_padded_sequence(given(x)[:, None], [4])
    assert module(packed)[0].data.dtype == HALF
    if grad:
        out.float().sum().backward()
        assert module.weight_ih_l0.grad.dtype == FLOAT
    with pytest.raises(ValueError, match="weight dtype"), amp.disable_casts():
        module(x.half()[None])


@pytest.mark.parametrize("training", [True, False])
def test_attention_modules_run_in_training_and_in_evaluation(o1, training):
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).train(training)
    model = nn.Sequential(nn.Linear(6, 6), nn.TransformerEncoder(layer, 2)).train(training)
    with torch.set_grad_enabled(training):
        found = model(x[None])
        with amp.disable_casts():
            torch.testing.assert_close(found.float(), model(x[None]), rtol=0.02, atol=0.02)
    amp._amp_state.handle._deactivate()
    assert torch.backends.mha.get_fastpath_enabled()


def test_results_are_those_of_fp32_within_half_precision():
    model = Net()
    expected = model(inputs := batch())
    amp.initialize(model, opt_level="O1", verbosity=0)
    torch.testing.assert_close(model(inputs).float(), expected, rtol=5e-3, atol=5e-3)


def test_casts_hold_in_every_thread(o1):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.mm(square, square).dtype))
    thread.start()
    thread.join()
    assert found == [HALF]


def test_out_is_written(o1):
    out = torch.empty(4, 6)
    torch.mm(x, square, out=out)
    with amp.disable_casts():
        assert torch.equal(out, torch.mm(x, square))


def o1_model(model):
    return amp.initialize(
        model, SGD(model.parameters(), 0.5), opt_level="O1", verbosity=0, loss_scale=4.0
    )


def test_shared_weights_are_cast_once_and_get_both_gradients():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    model, optimizer = o1_model(model)
    out = model(model(torch.ones(1, 1)))
    assert list(amp._amp_state.handle.cache) == [model.weight]
    backward(out.sum(), optimizer)
    assert model.weight.grad.item() == 6.0
    assert not amp._amp_state.handle.cache


def test_kept_casts_never_outlive_the_weights():
    model, optimizer = o1_model(nn.Linear(1, 1, bias=False))
    one = torch.ones(1, 1)
    with torch.no_grad():
        model(one)
    assert not next(iter(amp._amp_state.handle.cache.values())).requires_grad
    backward(model(one).sum(), optimizer)  # training after evaluation needs a differentiable one
    assert model.weight.grad is not None
    with torch.no_grad():
        model(one)
        model.weight.fill_(7.0)
        assert model(one).item() == 7.0
    model.requires_grad_(requires_grad=False)
    amp._amp_state.handle._clear_cache()
    with torch.inference_mode():
        model(one)
    one.requires_grad_()
    model(one).sum().backward()  # which saves the weight
    assert one.grad.item() == 7.0
    kept = amp._amp_state.handle.cache
    kept[model.weight] = kept[model.weight].to("meta")  # as if the model had moved since
    assert model(one).item() == 7.0
