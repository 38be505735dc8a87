"""The Triton kernels of packing: what they need of an H100 or H200, and what they cost the host."""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.mechanisms.activations.packing import Draw
from halfstep.mechanisms.activations.packing.form import GROUPS_A_FORWARD
from kernels.sm90 import needs

pytest.importorskip("triton")

from halfstep.mechanisms.activations.packing import gpu

KERNELS = ("_pack_kernel", "_unpack_kernel", "_mask_kernel", "_masked_kernel")
NUMBERS = dict.fromkeys(("elements", "groups", "seed_low", "seed_high", "stream", "first"), "i32")


def compiled(name: str, dtype: str, *, normalises: bool = False, **constants):
    kinds = NUMBERS | {"stored": "*u8", "bits": "*u8", "forwards": "*i64"}
    kinds |= {"rectified": f"*{dtype}", "mask": "*u8"}
    kinds |= {"scale": "*fp32", "shift": "*fp32", "channels": "i32"}
    kinds |= {"source": f"*{dtype}", "target": f"*{dtype}"}
    group = constants.setdefault("group", 256)
    constants["at_once"] = gpu.ELEMENTS_A_PROGRAM // group
    if name == "_pack_kernel":
        constants |= {"groups_a_forward": GROUPS_A_FORWARD, "normalises": normalises}
        constants |= {"rectifies": normalises}
    return needs(getattr(gpu, name), kinds, constants, enable_fp_fusion=False)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_group_is_read_once_by_16_bytes_and_written_by_as_many(bits):
    found = compiled("_pack_kernel", "fp16", bits=bits)
    assert found.spilled == 0
    assert found.registers <= 128, "four programs of 128 threads share a processor"
    # A thread has 64 elements; the other reads are the last element and the counter of passes.
    assert found.moved["ld"] == {16: 8, 2: 1, 8: 1}
    of_codes = {2: {16: 1}, 3: {16: 1, 8: 1}, 4: {16: 2}, 8: {16: 4}}[bits]
    assert found.moved["st"] == of_codes | {2: 2}
    assert found.exchanges <= 16, "neighbours exchange the span of a group, not its codes"
    assert found.divisions == 1, "a thread has one group, and divides once for it"


def test_normalising_adds_reads_of_channels_and_a_mask_those_of_its_tensor():
    found = compiled("_pack_kernel", "fp16", bits=4, normalises=True)
    assert found.spilled == 0
    assert found.registers <= 168
    # For each 8 elements, 8 scales and 8 shifts, which lie in a cache, and 8 elements for a mask.
    assert found.moved["ld"][16] == 8 + 8 * 4 + 8
    assert found.moved["st"] == {16: 2, 8: 1, 2: 2}


@pytest.mark.parametrize(("dtype", "bits"), [("fp16", 2), ("bf16", 4), ("fp16", 3)])
def test_unpacking_reads_and_writes_16_bytes_without_another_thread(dtype, bits):
    found = compiled("_unpack_kernel", dtype, bits=bits)
    assert (found.spilled, found.exchanges) == (0, 0)
    assert found.registers <= 64
    assert found.moved["st"] == {16: 8}
    of_codes = {2: {16: 1}, 3: {16: 1, 8: 1}, 4: {16: 2}}[bits]
    assert found.moved["ld"] == of_codes | {2: 2}


def test_masks_move_16_bytes_of_values():
    found = compiled("_mask_kernel", "fp16")
    assert (found.spilled, found.exchanges) == (0, 0)
    assert found.moved == {"ld": {16: 8}, "st": {8: 1}}
    found = compiled("_masked_kernel", "bf16")
    assert (found.spilled, found.exchanges) == (0, 0)
    assert found.moved == {"ld": {16: 8, 8: 1}, "st": {16: 8}}


@pytest.mark.parametrize("group", [64, 1024])
def test_other_groups_spill_nothing(group):
    found = compiled("_pack_kernel", "bf16", bits=4, group=group)
    assert found.spilled == 0
    assert found.moved["ld"][16] == 8


class Calls(TorchDispatchMode):
    """Lists the operators that the host calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launches(monkeypatch):
    """The arguments of each launch, instead of the launch, and the tensor whose GPU is current."""
    entered: list[torch.Tensor] = []
    launched: list[tuple[torch.Tensor, tuple]] = []

    @contextmanager
    def device_of(tensor: torch.Tensor):
        entered.append(tensor)
        yield
        entered.pop()

    class Kernel:
        def __getitem__(self, grid: tuple[int]):
            return lambda *args, **_: launched.append((entered[-1], args))

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for name in KERNELS:
        monkeypatch.setattr(gpu, name, Kernel())
    return launched


def test_a_tensor_costs_one_allocation_and_one_launch_in_each_direction(launches):
    values, draw = torch.randn(300), Draw(1, forwards=torch.tensor(3))
    with Calls() as calls:
        packed = gpu.pack(values, 4, 256, draw)
        gpu.unpack(packed)
        bits = gpu.mask(values)
        gpu.masked(values, bits)
    assert len(launches) == 4
    assert calls.names == ["aten::new_empty"] * 3 + ["aten::empty_like"]


def test_triton_launches_on_the_gpu_of_the_tensor(launches):
    """It launches on the current GPU, wherever the tensor is."""
    values = torch.randn(300)
    gpu.unpack(gpu.pack(values, 4, 256, Draw(1)))
    gpu.masked(values, gpu.mask(values))
    current = [tensor for tensor, _ in launches]
    assert current[0] is current[2] is current[3] is values


def test_no_seed_and_no_step_leads_to_another_kernel(launches):
    """Triton compiles anew for a number beyond 31 bits, and for a 1 or a multiple of 16."""
    for seed, counter in ((0, 1), (2**64 - 1, GROUPS_A_FORWARD - 1), (2**31, 16)):
        gpu.pack(torch.randn(512), 4, 256, Draw(seed, 2**20, counter, torch.tensor(2**40)))
    for _, args in launches:
        numbers = [each for each in args if isinstance(each, int)]
        assert all(-(2**31) <= each < 2**31 for each in numbers)
    from halfstep.mechanisms.activations.packing.gpu import _NUMBERS

    assert {"groups", "seed_low", "seed_high", "stream", "first"} <= set(_NUMBERS)
