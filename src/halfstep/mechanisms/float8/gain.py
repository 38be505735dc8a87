"""What native FP8 products gain over bf16 ones, by the shape of a layer and the GPU.

The table `gains.toml` has measured gains. The gains of other shapes are predicted by a roofline:
the products' FLOPs and bytes, and the bytes of the casts around them. A small or narrow layer
spends more time on casts than its products save, so that FP8 makes it slower.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE = Path(__file__).with_name("gains.toml")

PAYS = 1.05
"""The least gain for which a layer multiplies in FP8."""

SAMPLES = tuple(2**power for power in range(7, 18))
"""The numbers of samples among which the fewest that pay are sought."""

Source = Literal["measured", "predicted"]


class Gain(NamedTuple):
    """The time of a layer's products in bf16 over that in FP8, with the casts around them."""

    value: float
    source: Source


class Fewest(NamedTuple):
    """From how many samples on FP8 pays; `samples` is None if it does not up to `SAMPLES[-1]`."""

    samples: int | None
    source: Source

    def __str__(self) -> str:
        if self.samples is None:
            return f"slower in FP8 up to {SAMPLES[-1]} samples ({self.source})"
        return f"from {self.samples} samples on ({self.source})"


@dataclass(frozen=True)
class Gains:
    """The gains on one GPU.

    Args:
        key: The GPU's name in the table.
        row: Its entry in the table.
    """

    key: str
    row: Mapping[str, Any]

    @classmethod
    def of(cls, device: torch.device) -> Gains:
        """Return the gains on a CUDA device; an unknown one counts as a known one of its kind."""
        name = torch.cuda.get_device_name(device)
        rows = table()["gpus"]
        for key, row in rows.items():
            if row["name"] in name:
                return cls(key, row)
        major, minor = torch.cuda.get_device_capability(device)
        capable = {
            tuple(row["capability"]): key for key, row in rows.items() if "capability" in row
        }
        below = [known for known in sorted(capable) if known <= (major, minor)]
        key = capable[(below or sorted(capable))[-1]]
        return cls(key, {**rows[key], "measured": []})

    @classmethod
    def named(cls, key: str) -> Gains:
        """Return the gains on the GPU with this name in the table.

        Raises:
            KeyError: If the table has no such GPU.
        """
        return cls(key, table()["gpus"][key])

    def gain(self, samples: int, inputs: int, outputs: int) -> Gain:
        """Return the gain of a layer with so many samples, inputs and outputs."""
        for *shape, value in self.row["measured"]:
            if shape == [samples, inputs, outputs]:
                return Gain(value, "measured")
        return Gain(self._predicted(samples, inputs, outputs), "predicted")

    def fewest(self, inputs: int, outputs: int) -> Fewest:
        """Return from how many samples on a layer with so many inputs and outputs pays."""
        found: Fewest | None = None
        for samples in reversed(SAMPLES):
            gain = self.gain(samples, inputs, outputs)
            if gain.value < PAYS:
                return found or Fewest(None, gain.source)
            found = Fewest(samples, gain.source)
        assert found is not None
        return found

    def _predicted(self, samples: int, inputs: int, outputs: int) -> float:
        assumed, row = table()["prediction"], self.row
        read, given, weight = samples * inputs, samples * outputs, inputs * outputs
        bandwidth = row["bandwidth"] * assumed["bandwidth"] * 1e3  # bytes in a microsecond

        def product(bytes_: int, format_: str) -> float:
            """Return the microseconds of one of the three products, which have equal FLOPs."""
            rate = row[format_] * assumed[format_] * 1e6
            return float(max(2 * samples * weight / rate, bytes_ / bandwidth) + assumed["kernel"])

        def cast(bytes_: int, kernels: int) -> float:
            return float(bytes_ / bandwidth + kernels * assumed["kernel"])

        # Each product reads two of the tensors and writes the third; results are in bf16. A cast to
        # FP8 reads a tensor in bf16 twice and writes it twice; the weight is cast to bf16 before.
        in_bf16 = 3 * product(2 * (read + given + weight), "bf16") + cast(6 * weight, 1)
        results = read + given + weight
        in_fp8 = sum(
            product(results - result + 2 * result, "fp8") for result in (read, given, weight)
        )
        in_fp8 += cast(6 * read, 3) + cast(6 * given, 3) + cast(12 * weight, 4)
        return in_bf16 / in_fp8


@cache
def table() -> dict[str, Any]:
    """Return the content of `gains.toml`."""
    return tomllib.loads(TABLE.read_text())
