"""Lists the commonest operators of 40 timm models and two transformers, by their predicted time.

    python benchmarks/operator_list.py

A step of each model is traced under autocast and in fp32. The predicted time on an H200 is shared
out among the calls, so that every model counts as much as any other. The calls with the largest
sums are listed in `src/halfstep/bench/operators/commonest.json`, after the steps of optimizers;
`halfstep bench operators` measures them. The twelve models of `gpu_items/models.py` that score
predictions have no part in it. It takes about ten minutes of a CPU.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h200
import timm
import torch
from torch import nn
from torch.nn import functional

from halfstep.advise.predict import trace
from halfstep.advise.predict.cost import constants, kernels
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.step import traced
from halfstep.advise.predict.trace import Call
from halfstep.advise.predict.workload import workload
from halfstep.advise.subject import Subject
from halfstep.bench.operators.spec import encoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.advise.predict.operators import Op
    from halfstep.bench.operators.spec import Spec

FILE = Path(__file__).resolve().parents[1] / "src/halfstep/bench/operators/commonest.json"
NUMBER = 300
IMAGES = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet50d", "wide_resnet50_2",
    "resnext50_32x4d", "resnext101_32x8d", "seresnet50", "densenet121", "vgg16_bn", "inception_v3",
    "mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b0", "efficientnet_b3",
    "tf_efficientnetv2_s", "regnety_032", "regnetx_032", "regnetz_b16", "mnasnet_100",
    "ghostnet_100",
    "convnext_tiny", "convnext_base", "convnextv2_tiny", "vit_small_patch16_224",
    "vit_base_patch16_224", "vit_large_patch16_224", "deit_small_patch16_224",
    "deit3_base_patch16_224", "swin_tiny_patch4_window7_224", "swin_base_patch4_window7_224",
    "beit_base_patch16_224", "mixer_b16_224", "coatnet_0_rw_224", "maxvit_tiny_rw_224",
    "poolformer_s12", "cspdarknet53", "dpn68b", "nfnet_l0",
)  # fmt: skip
_FOREACH = ("_foreach", "_fused", "_amp")
"""Operators on all parameters of a model at once; `optimizers` lists them by size."""
_PARAMETERS = 16
_SIZES = (2**21, 2**18, 2**14)
"""Numbers and sizes of the parameters of the listed optimizers."""


class Language(nn.Module):
    """A transformer of words: an encoder as BERT's, or a decoder with a causal mask as GPT's."""

    def __init__(self, width: int, layers: int, *, causal: bool) -> None:
        super().__init__()
        self.embed, self.causal = nn.Embedding(32_000, width), causal
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.head = nn.Linear(width, 32_000, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of each word."""
        value = self.embed(words)
        for at, qkv in enumerate(self.qkv):
            parts = qkv(self.norms[2 * at](value)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
            value = value + self.out[at](mixed.transpose(1, 2).flatten(2))
            hidden = functional.gelu(self.up[at](self.norms[2 * at + 1](value)))
            value = value + self.down[at](hidden)
        return self.head(value).flatten(0, 1)


def subjects() -> Iterator[tuple[str, Subject]]:
    """Yield the models with a batch each."""
    for name in IMAGES:
        pixels = timm.get_pretrained_cfg(name).input_size[-1]
        yield name, h200.subject(name, 64, pixels, nhwc=False)
    for name, causal in (("encoder", False), ("decoder", True)):
        words = torch.zeros(16, 512, dtype=torch.int64)
        yield (
            name,
            Subject(
                name,
                Language(768, 12, causal=causal),
                lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
                [(words, words.flatten())],
                lambda model: torch.optim.AdamW(model.parameters()),
            ),
        )


def optimizers() -> Iterator[Spec]:
    """Yield steps of SGD and AdamW, and the unscaling of gradients, on parameters of equal size."""
    scalar = torch.zeros(())
    for size in _SIZES:
        each = [torch.zeros(size)] * _PARAMETERS
        sgd = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.01, "dampening": 0.0}
        sgd |= {"nesterov": False, "maximize": False, "is_first_step": False}
        yield encoded("_fused_sgd_.default", (each, each, each), sgd)
        adamw = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
        adamw |= {"amsgrad": False, "maximize": False}
        steps = [scalar] * _PARAMETERS
        yield encoded("_fused_adamw_.default", (each, each, each, each, [], steps), adamw)
        unscale = "_amp_foreach_non_finite_check_and_unscale_.default"
        yield encoded(unscale, (each, scalar, scalar), {})


def calls(subject: Subject, recipe: str) -> list[tuple[str, Call]]:
    """Return the calls of a step, but not of its optimizer, as JSON, each with its work."""
    seen: list[tuple[str, Call]] = []
    whole = trace.described

    def noted(func: Any, args: Any, kwargs: Any, out: Any) -> Iterator[Op]:
        ops = list(whole(func, args, kwargs, out))
        if ops and not ops[0].name.startswith(_FOREACH):
            overload = f"{func.overloadpacket.__name__}.{func._overloadname}"  # noqa: SLF001
            key = json.dumps(encoded(overload, args, kwargs))
            seen.extend((key, Call(op, "forward", 1)) for op in ops)
        yield from ops

    trace.described = noted
    try:
        traced(subject, recipe)
    finally:
        trace.described = whole
    return seen


def main() -> None:
    """Trace the models, and write the list."""
    shares: Counter[str] = Counter()
    for name, subject in subjects():
        for recipe in ("fp16", "fp32"):
            try:
                seen = calls(subject, recipe)
            except Exception as error:  # noqa: BLE001  (what dozens of models raise)
                print(f"{name} {recipe}: {' '.join(str(error).split())[:150]}", flush=True)
                continue
            work = workload([call for _, call in seen], gpu("h200"), tf32=recipe == "fp32")
            spent = kernels(work, constants("hopper")).total
            for (key, _), share in zip(seen, spent / spent.sum(), strict=True):
                shares[key] += float(share)
            print(f"{name} {recipe}: {len({key for key, _ in seen})} calls", flush=True)
    common = [*optimizers()]
    chosen = shares.most_common(NUMBER - len(common))
    common += [json.loads(key) for key, _ in chosen]
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in common)
    FILE.write_text(f"[\n{lines}\n]\n")
    covered = sum(share for _, share in chosen) / shares.total()
    print(f"{len(common)} of {len(shares)} calls, {covered:.0%} of the predicted time")


if __name__ == "__main__":
    main()
