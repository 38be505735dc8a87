"""The layers of the made-up block format, and the product of its made-up hardware."""

import torch

from halfstep.mechanisms.products.layers import ProductLayers
from halfstep.mechanisms.products.quantised import Operand, Quantised

DEVICES_WITH_UNITS: set[str] = set()
BLOCK = 4


class Block8:
    """Quantises along the axis of the product; a gradient is quantised once for each product."""

    def depends_on_axis(self, role):
        return True

    def format_of(self, role):
        return "block8"

    def quantised(self, value, role, axis, *, training=True):
        wide = value.detach().float()
        kept = [each for each in range(wide.dim()) if each not in axis]
        ordered = wide.permute(*kept, *axis)
        flat = ordered.reshape(*ordered.shape[: len(kept)], -1)
        missing = -flat.shape[-1] % BLOCK
        blocks = torch.nn.functional.pad(flat, (0, missing)).unflatten(-1, (-1, BLOCK))
        largest = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100)
        scales = torch.exp2(torch.floor(torch.log2(largest)) - 8).expand_as(blocks)
        back = torch.argsort(torch.tensor([*kept, *axis])).tolist()

        def restored(tensor):
            cut = tensor.flatten(-2)[..., : flat.shape[-1]]
            return cut.reshape(ordered.shape).permute(back).contiguous()

        values = restored((blocks / scales).clamp(-448, 448)).to(torch.float8_e4m3fn)
        return Quantised(values, torch.ones((), device=value.device), restored(scales))


class Hardware:
    """Multiplies in float64, as no emulation does."""

    fewest = 1
    calls = 0

    def format_of(self, role):
        return "block8"

    def cast(self, matrix, role, *, rows=False, columns=False, out=(None, None)):
        def operand(factor):
            quantised = Block8().quantised(factor, role, (1,))
            return Operand(quantised.values, quantised.blocks)

        return operand(matrix) if rows else None, operand(matrix.t()) if columns else None

    def multiply(self, left, right, dtype, *, gradient, bias=None):
        self.calls += 1
        wide = [operand.values.double() * operand.decode for operand in (left, right)]
        product = wide[0] @ wide[1].t()
        return (product if bias is None else product + bias.double()).to(dtype)


hardware = Hardware()


class Block8Layers(ProductLayers):
    multiple = BLOCK

    def quantiser(self, layer):
        return Block8()

    def native(self, layer):
        if isinstance(layer, torch.nn.Linear) and layer.weight.device.type in DEVICES_WITH_UNITS:
            return hardware
        return None
