"""Compiles Triton kernels for sm_90 without a GPU, and reads what the result needs of one."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_EVEN = ("elements", "channels")
"""Numbers that are multiples of 16 in the tensors of a network."""


@dataclass(frozen=True)
class Needs:
    """What a compiled kernel needs.

    Attributes:
        registers: Registers of a thread.
        spilled: Bytes that a thread spills to memory.
        moved: For loads ("ld") and stores ("st") of global memory, the instructions by their bytes.
        addresses: Loads of 8 bytes that are an address or a number, not part of a tensor.
        exchanges: Instructions that exchange values between threads by shared memory or shuffles.
        divisions: Divisions of fp32, each of which takes about ten instructions.
        instructions: PTX instructions, which ptxas orders and merges.
    """

    registers: int
    spilled: int
    moved: dict[str, Counter[int]]
    addresses: int
    exchanges: int
    divisions: int
    instructions: int


def needs(kernel, kinds: dict[str, str], constants: dict[str, object], **options) -> Needs:
    """Compile a kernel; pointers and the number of elements are multiples of 16, as in a run.

    Args:
        kernel: A function under `triton.jit`.
        kinds: The type of each argument that is no constant ("*fp16", "i32").
        constants: The other arguments.
        options: Options of Triton's compiler.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds[name] for name in names}
    given = {(index,): constants[name] for index, name in enumerate(names) if name in constants}
    kept = {each.name for each in kernel.params if each.do_not_specialize}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name not in constants and name not in kept and (kinds[name][0] == "*" or name in _EVEN)
    }
    source = ASTSource(kernel, signature, given, aligned)
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    report = subprocess.run(
        [tool, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", "-"],
        input=assembly, capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    (registers,) = re.findall(r"Used (\d+) registers", report)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", report)))
    moved: dict[str, Counter[int]] = {"ld": Counter(), "st": Counter()}
    pattern = r"(ld|st)\.global(?:\.\w+)*?(?:\.v(\d))?\.[bfus](\d+)"
    for way, lanes, bits in re.findall(pattern, assembly):
        moved[way][int(lanes or 1) * int(bits) // 8] += 1
    addresses = len(re.findall(r"ld\.global(?:\.\w+)*?\.b64", assembly))
    exchanges = len(re.findall(r"shfl\.sync|(?:ld|st)\.shared|ldmatrix|stmatrix", assembly))
    divisions = len(re.findall(r"div\.\w+\.f32", assembly))
    instructions = assembly.count(";\n")
    return Needs(int(registers), spilled, moved, addresses, exchanges, divisions, instructions)
