"""Every layer of `torch.nn`, tiny, with what it takes; for the test of layers under recipes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

Case = tuple[nn.Module, "tuple[Any, ...]"]

NOT_LAYERS = {
    *("Module", "Container", "Sequential", "ModuleList", "ModuleDict"),
    *("ParameterList", "ParameterDict", "DataParallel", "RNNBase", "RNNCellBase"),
    # Made of a plain layer at their first forward pass.
    *(name for name in dir(nn) if name.startswith("Lazy")),
}
"""Containers, bases, and layers that become another."""

RANDOM = {
    *("AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"),
    *("RReLU", "LSTM of two layers with dropout"),
    *("FractionalMaxPool2d", "FractionalMaxPool3d"),
}
"""Layers that draw other random numbers in another format while they train."""


def layer_classes() -> set[str]:
    """Return the names of the classes of `torch.nn` that are layers."""
    found = {n for n, c in vars(nn).items() if isinstance(c, type) and issubclass(c, nn.Module)}
    return found - NOT_LAYERS


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return numbers that every half format holds, so that no maximum becomes another."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (drawn * 16).round().clamp(-64, 64) / 16


def positive(*shape: int) -> torch.Tensor:
    """Return numbers from 1/8 to 7/8."""
    drawn = torch.randint(1, 8, shape, generator=torch.Generator().manual_seed(0))
    return drawn / 8


def signs(*shape: int) -> torch.Tensor:
    """Return targets of 1 and -1."""
    return positive(*shape).sub(0.5).sign().add(0.5).sign()


def classes(*shape: int) -> torch.Tensor:
    """Return classes from 0 to 3."""
    return torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0))


def packed() -> Any:
    """Return sequences of three lengths."""
    return pack_padded_sequence(values(4, 3, 16), torch.tensor([4, 2, 1]))


def layers() -> dict[str, Case]:
    """Return each layer with its inputs, by the name of its class; variants are "LSTM of ..."."""
    torch.manual_seed(0)
    return {**_pointwise(), **_by_rank(), **_with_weights(), **_recurrent(), **_losses()}


def _pointwise() -> dict[str, Case]:
    plain = (
        *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh"),
        *("Identity", "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU"),
        *("ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmin", "Softplus", "Softshrink"),
        *("Softsign", "Tanh", "Tanhshrink", "GLU", "Flatten", "Dropout", "AlphaDropout"),
        *("FeatureAlphaDropout",),
    )
    given: dict[str, tuple[Any, ...]] = {
        "Softmax": (-1,), "Softmin": (-1,), "LogSoftmax": (-1,),
    }  # fmt: skip
    cases: dict[str, Case] = {
        n: (getattr(nn, n)(*given.get(n, ())), (values(4, 6),)) for n in plain
    }
    return cases | {
        "Threshold": (nn.Threshold(0.5, 0.25), (values(4, 6),)),
        "Unflatten": (nn.Unflatten(1, (2, 3)), (values(4, 6),)),
        "Softmax2d": (nn.Softmax2d(), (values(2, 4, 3, 3),)),
        "ChannelShuffle": (nn.ChannelShuffle(2), (values(2, 4, 3, 3),)),
        "PixelShuffle": (nn.PixelShuffle(2), (values(2, 4, 3, 3),)),
        "PixelUnshuffle": (nn.PixelUnshuffle(2), (values(2, 4, 4, 4),)),
        "Fold": (nn.Fold((4, 4), 2), (values(2, 8, 9),)),
        "Unfold": (nn.Unfold(2), (values(2, 2, 4, 4),)),
        "Upsample": (nn.Upsample(scale_factor=2), (values(2, 2, 3, 3),)),
        "Upsample in 1 dimension": (
            nn.Upsample(scale_factor=2, mode="linear"), (values(2, 2, 3),)),
        "Upsample in 3 dimensions": (
            nn.Upsample(scale_factor=2, mode="trilinear"), (values(2, 2, 3, 3, 3),)),
        "Upsample by cubes": (nn.Upsample(scale_factor=2, mode="bicubic"), (values(2, 2, 3, 3),)),
        "UpsamplingBilinear2d": (nn.UpsamplingBilinear2d(scale_factor=2), (values(2, 2, 3, 3),)),
        "UpsamplingNearest2d": (nn.UpsamplingNearest2d(scale_factor=2), (values(2, 2, 3, 3),)),
    }  # fmt: skip


def _by_rank() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for rank in (1, 2, 3):
        inputs = values(2, 4, *[6] * rank)
        for name in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool"):
            cases[f"{name}{rank}d"] = getattr(nn, f"{name}{rank}d")(2), (inputs,)
        cases[f"LPPool{rank}d"] = getattr(nn, f"LPPool{rank}d")(2, 2), (inputs,)
        indices = nn.functional.max_pool2d
        indices = getattr(nn.functional, f"max_pool{rank}d")(inputs, 2, return_indices=True)[1]
        cases[f"MaxUnpool{rank}d"] = (
            getattr(nn, f"MaxUnpool{rank}d")(2), (values(*indices.shape), indices))  # fmt: skip
        for name in ("ReflectionPad", "ReplicationPad", "ZeroPad", "CircularPad"):
            cases[f"{name}{rank}d"] = getattr(nn, f"{name}{rank}d")(1), (inputs,)
        cases[f"ConstantPad{rank}d"] = getattr(nn, f"ConstantPad{rank}d")(1, 0.5), (inputs,)
        cases[f"Dropout{rank}d"] = getattr(nn, f"Dropout{rank}d")(), (inputs,)
        cases[f"BatchNorm{rank}d"] = getattr(nn, f"BatchNorm{rank}d")(4), (inputs,)
        norm = getattr(nn, f"InstanceNorm{rank}d")
        cases[f"InstanceNorm{rank}d"] = norm(4, affine=True), (inputs,)
        cases[f"InstanceNorm{rank}d with statistics"] = (
            norm(4, affine=True, track_running_stats=True), (inputs,))  # fmt: skip
        for name in ("Conv", "ConvTranspose"):
            layer = getattr(nn, f"{name}{rank}d")
            cases[f"{name}{rank}d"] = layer(4, 6, 3, padding=1), (inputs,)
            cases[f"{name}{rank}d of groups"] = layer(4, 4, 2, stride=2, groups=2), (inputs,)
            wide = values(2, 16, *[4] * rank)
            cases[f"{name}{rank}d of widths for FP8"] = layer(16, 16, 3), (wide,)
        if rank > 1:
            samples = torch.rand(2, 4, rank, generator=torch.Generator().manual_seed(0))
            pool = getattr(nn, f"FractionalMaxPool{rank}d")
            cases[f"FractionalMaxPool{rank}d"] = (
                pool(2, output_size=3, _random_samples=samples), (inputs,))  # fmt: skip
    return cases


def _with_weights() -> dict[str, Case]:
    tokens = torch.tensor([[1, 2, 2], [6, 0, 1]])
    attended = values(5, 2, 16)
    source, target = values(5, 2, 16), values(4, 2, 16, seed=1)
    # Not ReLU, where a rounding of what is nearly zero makes another gradient.
    small = {"dim_feedforward": 16, "dropout": 0.0, "activation": "gelu"}
    encoder_layer = nn.TransformerEncoderLayer(16, 2, **small)
    return {
        "Linear": (nn.Linear(6, 5), (values(4, 6),)),
        "Linear of widths for FP8": (nn.Linear(32, 16), (values(4, 32),)),
        "Linear of three dimensions": (nn.Linear(6, 5), (values(2, 4, 6),)),
        "Bilinear": (nn.Bilinear(4, 5, 3), (values(4, 4), values(4, 5))),
        "Embedding": (nn.Embedding(7, 6), (tokens,)),
        "Embedding of a largest norm": (nn.Embedding(7, 6, max_norm=1.0), (tokens,)),
        "EmbeddingBag": (nn.EmbeddingBag(7, 6), (tokens,)),
        "EmbeddingBag of sums": (nn.EmbeddingBag(7, 6, mode="sum"), (tokens,)),
        "EmbeddingBag of maxima": (nn.EmbeddingBag(7, 6, mode="max"), (tokens,)),
        "LayerNorm": (nn.LayerNorm(6), (values(4, 6),)),
        "RMSNorm": (nn.RMSNorm(6), (values(4, 6),)),
        "GroupNorm": (nn.GroupNorm(2, 4), (values(2, 4, 3, 3),)),
        "SyncBatchNorm": (nn.SyncBatchNorm(4), (values(2, 4, 3, 3),)),
        "LocalResponseNorm": (nn.LocalResponseNorm(2), (values(2, 4, 3, 3),)),
        "CrossMapLRN2d": (nn.CrossMapLRN2d(2), (values(2, 4, 3, 3),)),
        "CosineSimilarity": (nn.CosineSimilarity(), (values(4, 6), values(4, 6, seed=1))),
        "PairwiseDistance": (nn.PairwiseDistance(), (values(4, 6), values(4, 6, seed=1))),
        "MultiheadAttention": (nn.MultiheadAttention(16, 2), (attended,) * 3),
        "MultiheadAttention of other keys": (
            nn.MultiheadAttention(16, 2, kdim=6, vdim=8),
            (target, values(5, 2, 6), values(5, 2, 8)),
        ),
        "Transformer": (
            nn.Transformer(16, 2, 1, 1, **small), (source, target)),
        "TransformerEncoder": (
            nn.TransformerEncoder(encoder_layer, 1, enable_nested_tensor=False), (source,)),
        "TransformerEncoderLayer": (nn.TransformerEncoderLayer(16, 2, **small), (source,)),
        "TransformerDecoder": (
            nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, **small), 1),
            (target, source)),
        "TransformerDecoderLayer": (
            nn.TransformerDecoderLayer(16, 2, **small), (target, source)),
    }  # fmt: skip


def _recurrent() -> dict[str, Case]:
    inputs, state = values(4, 3, 16), values(3, 8)
    cases: dict[str, Case] = {
        "RNNCell": (nn.RNNCell(16, 8), (inputs[0], state)),
        "RNNCell of relu": (nn.RNNCell(16, 8, nonlinearity="relu"), (inputs[0],)),
        "GRUCell": (nn.GRUCell(16, 8), (inputs[0], state)),
        "GRUCell without a state": (nn.GRUCell(16, 8), (inputs[0],)),
        "LSTMCell": (nn.LSTMCell(16, 8), (inputs[0], (state, values(3, 8, seed=1)))),
        "LSTMCell without a state": (nn.LSTMCell(16, 8), (inputs[0],)),
        "RNN of relu": (nn.RNN(16, 8, nonlinearity="relu"), (inputs,)),
        "LSTM of projections": (nn.LSTM(16, 8, proj_size=4), (inputs,)),
        "LSTM of projections in two directions": (
            nn.LSTM(16, 8, proj_size=4, bidirectional=True), (inputs,)),
        "LSTM of packed sequences in two directions": (
            nn.LSTM(16, 8, bidirectional=True), (packed(),)),
        "LSTM of two layers with dropout": (nn.LSTM(16, 8, 2, dropout=0.5), (inputs,)),
        "LSTM with a state": (
            nn.LSTM(16, 8), (inputs, (values(1, 3, 8), values(1, 3, 8, seed=1)))),
        "LSTM without a batch": (nn.LSTM(16, 8), (inputs[:, 0],)),
    }  # fmt: skip
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        name = kind.__name__
        cases |= {
            name: (kind(16, 8), (inputs,)),
            f"{name} of two layers in two directions": (
                kind(16, 8, 2, bidirectional=True), (inputs,)),
            f"{name} without biases": (kind(16, 8, bias=False), (inputs,)),
            f"{name} of batches first": (kind(16, 8, batch_first=True), (inputs,)),
            f"{name} of packed sequences": (kind(16, 8), (packed(),)),
        }  # fmt: skip
    return cases


def _losses() -> dict[str, Case]:
    logits, other = values(4, 6), values(4, 6, seed=1)
    lengths = torch.tensor([5, 4]), torch.tensor([3, 2])
    targets: dict[str, tuple[Any, ...]] = {
        "BCEWithLogitsLoss": (logits, positive(4, 6)),
        "CosineEmbeddingLoss": (logits, other, signs(4)),
        "CrossEntropyLoss": (logits, classes(4)),
        "GaussianNLLLoss": (logits, other, positive(4, 6)),
        "HingeEmbeddingLoss": (logits, signs(4, 6)),
        "HuberLoss": (logits, other),
        "KLDivLoss": (logits, positive(4, 6)),
        "L1Loss": (logits, other),
        "MSELoss": (logits, other),
        "MarginRankingLoss": (logits, other, signs(4, 6)),
        "MultiLabelMarginLoss": (logits, classes(4, 6)),
        "MultiLabelSoftMarginLoss": (logits, positive(4, 6).round()),
        "MultiMarginLoss": (logits, classes(4)),
        "NLLLoss": (logits, classes(4)),
        "NLLLoss2d": (values(2, 4, 3, 3), classes(2, 3, 3)),
        "PoissonNLLLoss": (logits, positive(4, 6)),
        "SmoothL1Loss": (logits, other),
        "SoftMarginLoss": (logits, signs(4, 6)),
        "TripletMarginLoss": (logits, other, values(4, 6, seed=2)),
        "TripletMarginWithDistanceLoss": (logits, other, values(4, 6, seed=2)),
        "BCELoss": (positive(4, 6), positive(4, 6).flip(0)),
        "CTCLoss": (values(5, 2, 4), classes(2, 3).clamp(min=1), *lengths),
    }
    cases: dict[str, Case] = {name: (getattr(nn, name)(), given) for name, given in targets.items()}
    if hasattr(nn, "LinearCrossEntropyLoss"):  # since torch 2.13
        cases["LinearCrossEntropyLoss"] = nn.LinearCrossEntropyLoss(6, 4), (logits, classes(4))
    softmax = nn.AdaptiveLogSoftmaxWithLoss(6, 8, [3])
    return cases | {"AdaptiveLogSoftmaxWithLoss": (softmax, (logits, classes(4)))}
