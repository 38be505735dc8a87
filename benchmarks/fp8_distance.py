"""Compares the fp8 rehearsal with an FP8 tensor core, and both with the error of FP8 itself.

The rehearsal and the tensor core multiply the same FP8 factors. The rehearsal sums in fp32. A
tensor core aligns and truncates blocks of products, and its fast accumulation keeps fewer bits of
the running sum. The package `mmaemu` computes the exact result of an H100 PCIe on a CPU. Distances
are relative: the norm of the difference over the norm of the rehearsal. Forward products use the
fast accumulation, and gradients the exact one, as in Transformer Engine and torchao. The results
of a GPU with FP8 units are compared too, if there is one.

    pip install 'halfstep[bench]'
    python benchmarks/fp8_distance.py
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mmaemu
import torch

from halfstep.mechanisms.float8.quantiser import Float8
from halfstep.mechanisms.float8.scales import DynamicScales
from halfstep.mechanisms.products.product import product as quantised_product

if TYPE_CHECKING:
    from halfstep.mechanisms.products.quantised import Quantised, Role

RESULTS = Path(__file__).parent / "results" / "fp8_distance.json"
ROWS = COLUMNS = 64
INNER = (256, 1024, 4096)
FP8 = Float8(DynamicScales())


@dataclass(frozen=True)
class Distance:
    """The distances for one product.

    Attributes:
        factors: The distribution of the input's values.
        product: "forward" (fp8-e4m3 by fp8-e4m3) or "gradient" (fp8-e5m2 by fp8-e4m3).
        inner: The number of terms in each sum.
        fast_accumulation: Whether the tensor core keeps fewer bits of a sum.
        before_rounding: Distance between the results of the tensor core and of the rehearsal, in
            fp32.
        in_bf16: The same distance between the results in bf16.
        different_in_bf16: Share of the results in bf16 that differ.
        of_fp8: Distance between the product of the unquantised factors, in float64, and the
            rehearsal: the error of FP8 itself.
        on_gpu: Distance between the results of the GPU here and of the rehearsal, in fp32; None
            without such a GPU.
        same_on_gpu: Share of the GPU's results in fp32 that equal the emulated tensor core's, bit
            for bit.
    """

    factors: str
    product: str
    inner: int
    fast_accumulation: bool
    before_rounding: float
    in_bf16: float
    different_in_bf16: float
    of_fp8: float
    on_gpu: float | None = None
    same_on_gpu: float | None = None


def factors(inner: int) -> dict[str, torch.Tensor]:
    """Return typical inputs of linear layers, shape (ROWS, inner) in bf16, by name."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(ROWS, inner, generator=generator)
    channels = torch.where(torch.rand(inner, generator=generator) < 0.01, 30.0, 1.0)
    spread = torch.randn(ROWS, inner, generator=generator)
    made = {
        "normal": normal,
        "after relu": normal.relu(),
        "1% of channels 30 times as large": normal * channels,
        "log-normal": normal * spread.exp(),
    }
    return {name: value.bfloat16() for name, value in made.items()}


def weight_of(inner: int) -> torch.Tensor:
    """Return an initialised weight, shape (COLUMNS, inner) in bf16."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(COLUMNS, inner, generator=generator) / inner**0.5
    return weight.bfloat16()


def by_tensor_core(
    left: Quantised, right: Quantised, dtype: torch.dtype, *, fast: bool
) -> torch.Tensor:
    """Return left @ right.t() as an H100 PCIe computes it, with sums that are not split."""
    scales = 1 / left.scale, 1 / right.scale
    result: torch.Tensor = mmaemu.scaled_mm(
        left.values, right.values.t(), *scales, out_dtype=dtype, use_fast_accum=fast, splitk=1
    )
    return result


def has_fp8_units() -> bool:
    """Return whether there is a GPU with FP8 tensor cores."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def by_gpu(left: Quantised, right: Quantised, *, fast: bool) -> torch.Tensor:
    """Return left @ right.t() in fp32, as the GPU here computes it."""
    result: torch.Tensor = torch._scaled_mm(  # noqa: SLF001  # as torchao calls it
        left.values.cuda(),
        right.values.cuda().t(),
        (1 / left.scale).cuda(),
        (1 / right.scale).cuda(),
        out_dtype=torch.float32,
        use_fast_accum=fast,
    )
    return result.cpu()


def rehearsed(
    value: torch.Tensor, weight: torch.Tensor, product: str, dtype: torch.dtype
) -> torch.Tensor:
    """Return value @ weight.t() under the recipe fp8: a forward product, or an input's gradient."""
    if product == "forward":
        return quantised_product(value.to(dtype), weight, None, FP8)
    start = torch.zeros(len(value), len(weight), dtype=dtype, requires_grad=True)
    result = quantised_product(start, weight.t().contiguous(), None, FP8)
    (by_start,) = torch.autograd.grad(result, start, value.to(dtype))
    return by_start


def distance(name: str, value: torch.Tensor, product: str) -> Distance:
    """Return the distances for one product."""
    inner = value.shape[1]
    weight, fast = weight_of(inner), product == "forward"
    role: Role = "input" if fast else "gradient"
    left = FP8.quantised(value, role, (1,))
    right = FP8.quantised(weight, "weight", (1,))
    ours, theirs = {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        ours[dtype] = rehearsed(value, weight, product, dtype)
        theirs[dtype] = by_tensor_core(left, right, dtype, fast=fast)
    gpu = by_gpu(left, right, fast=fast) if has_fp8_units() else None
    return Distance(
        factors=name,
        product=product,
        inner=inner,
        fast_accumulation=fast,
        before_rounding=relative(theirs[torch.float32], ours[torch.float32]),
        in_bf16=relative(theirs[torch.bfloat16], ours[torch.bfloat16]),
        different_in_bf16=float((theirs[torch.bfloat16] != ours[torch.bfloat16]).double().mean()),
        of_fp8=relative(value.double() @ weight.double().t(), ours[torch.float32]),
        on_gpu=None if gpu is None else relative(gpu, ours[torch.float32]),
        same_on_gpu=None if gpu is None else float((gpu == theirs[torch.float32]).double().mean()),
    )


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of the reference."""
    error = (value.double() - reference.double()).norm() / reference.double().norm()
    return float(error.detach())


def main() -> None:
    """Compare, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args().out
    found = [
        distance(name, value, product)
        for product in ("forward", "gradient")
        for inner in INNER
        for name, value in factors(inner).items()
    ]
    print(
        f"{'factors':34}{'product':10}{'sums of':>8}{'fp32':>10}{'bf16':>10}{'differ':>9}{'FP8':>9}"
        + (f"{'GPU':>10}{'same':>9}" if has_fp8_units() else "")
    )
    for each in found:
        print(
            f"{each.factors:34}{each.product:10}{each.inner:8}{each.before_rounding:10.1e}"
            f"{each.in_bf16:10.1e}{each.different_in_bf16:9.1%}{each.of_fp8:9.1e}"
            + ("" if each.on_gpu is None else f"{each.on_gpu:10.1e}{each.same_on_gpu:9.1%}")
        )
    environment = {
        "torch": torch.__version__,
        "mmaemu": mmaemu.__version__,
        "python": platform.python_version(),
        "gpu": torch.cuda.get_device_name() if has_fp8_units() else None,
        "profile": "hopper: H100 PCIe, cuBLASLt 12.8.3.14, sums not split",
    }
    document = {"environment": environment, "distances": [asdict(each) for each in found]}
    out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
