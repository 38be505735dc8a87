"""Sharded tensors are recognised without an import of their package."""

from __future__ import annotations

import subprocess
import sys

import torch

from halfstep.doctor.tensors.local import is_sharded, local

ALONE = """
import sys
import torch
before = set(sys.modules)
import halfstep.doctor.program
print(sorted({"sympy", "torch.distributed.tensor"} & (set(sys.modules) - before)))
"""
SHARDED = """
import torch
from halfstep.doctor.tensors.local import is_sharded, local
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
part = torch.arange(3.0)
whole = DTensor.from_local(part, init_device_mesh("cpu", (1,)), [Shard(0)])
print(is_sharded(whole), is_sharded(part), torch.equal(local(whole), part))
torch.distributed.destroy_process_group()
"""


def printed(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_doctor_imports_no_package_of_sharded_tensors() -> None:
    assert printed(ALONE) == "[]"


def test_a_sharded_tensor_is_recognised_when_its_package_is_imported_later() -> None:
    assert printed(SHARDED) == "True False True"


def test_a_plain_tensor_is_its_own_part() -> None:
    tensor = torch.ones(2)
    assert not is_sharded(tensor)
    assert local(tensor) is tensor
