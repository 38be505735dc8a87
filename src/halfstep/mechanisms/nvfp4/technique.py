"""NVFP4 layers: linear and convolution layers that multiply as NVFP4 tensor cores do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from halfstep.mechanisms.nvfp4.quantiser import SIZE, Nvfp4
from halfstep.mechanisms.products.layers import ProductLayers
from halfstep.mechanisms.technique import no_own_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from halfstep.mechanisms.technique import OwnFormats


class Nvfp4Layers(ProductLayers):
    """Makes linear and convolution layers multiply in NVFP4, but for the first and the last one.

    Args:
        how: "published" or "nearest", as in the field `nvfp4`.
        own_formats: Returns the modules of a model that have a format of their own.
        seed: Seed of the stochastic rounding and of the signs of the Hadamard transform.
    """

    multiple = SIZE
    keeps_ends = True

    def __init__(
        self,
        how: Literal["published", "nearest"],
        *,
        own_formats: OwnFormats = no_own_formats,
        seed: int = 0,
    ) -> None:
        super().__init__(own_formats=own_formats)
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        bits = torch.randint(2, (SIZE,), generator=torch.Generator().manual_seed(seed))
        self._quantiser = Nvfp4(
            published=how == "published", generator=self._generator, signs=1.0 - 2.0 * bits
        )

    def quantiser(self, layer: nn.Module) -> Nvfp4:
        """Return the quantiser that all layers share."""
        del layer
        return self._quantiser

    @property
    def generators(self) -> Iterable[torch.Generator]:
        """The generators of the stochastic rounding, one for each device."""
        return self._generators.values()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the random numbers, by device."""
        states = {str(device): made.get_state() for device, made in self._generators.items()}
        return {"generators": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the random numbers after the saved ones."""
        self._generators.clear()
        for device, saved in state["generators"].items():
            self._generator(torch.device(device)).set_state(saved)

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Restore the random numbers at the end."""
        before = self.state_dict()
        try:
            yield
        finally:
            self.load_state_dict(before)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]
