"""Field `block8`: linear and convolution layers that multiply blocks of four e4m3 values."""

from halfstep.mechanisms import Part


class Block8(Part):
    field = "block8"
    place = 55
    traceable = False
    purpose = "Layers multiply blocks of four fp8-e4m3 values, each with a power of two as scale."
    allowed = {"rounded": "to nearest"}

    def product_format(self):
        return 2, "block8"

    def means(self, device):
        from halfstep.kernels.hardware import Means
        from mechanisms.block8 import technique

        has = device.type in technique.DEVICES_WITH_UNITS
        return Means("native" if has else "rehearsed", "blocks of four")

    def techniques(self, whole, *, seed):
        from mechanisms.block8.technique import Block8Layers

        yield Block8Layers(own_formats=whole.own_formats)
