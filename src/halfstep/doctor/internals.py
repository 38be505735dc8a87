"""The private names of torch that doctor uses, in one place.

They have no public counterparts. `tests/doctor/test_internals.py` checks the assumptions of this
file, so a change in torch fails a test before users notice it.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, overrides
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils import checkpoint
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.kernels.cuda_policy import LOWER, WIDEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess
    from types import FrameType, TracebackType

    from torch.optim.lr_scheduler import LRScheduler, SequentialLR
    from torch.overrides import TorchFunctionMode


def push_function_mode(mode: TorchFunctionMode, below: int = 0) -> None:
    """Put a mode on this thread's stack of torch function modes.

    Args:
        mode: The mode.
        below: Number of modes that stay above it.
    """
    depth = torch._C._len_torch_function_stack()
    above = [overrides._pop_mode() for _ in range(min(below, depth))]
    overrides._push_mode(mode)
    for each in reversed(above):
        overrides._push_mode(each)


def users_of_memory(tensor: torch.Tensor) -> int:
    """Return how many tensors, such as views, use the memory of a tensor.

    Args:
        tensor: The tensor.

    Returns:
        Their number, plus a constant; 0 for a tensor without memory of its own.
    """
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return 0
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.numel() * tensor.element_size():
        return 0
    return int(torch._C._storage_Use_Count(storage._cdata))


def keep_compiled_buffers() -> Callable[[], None]:
    """Make backward passes that are compiled from now on able to run more than once.

    By default, Inductor reuses the memory of the tensors that were saved for a backward, so that a
    replay fails.

    Returns:
        A function that restores the setting.
    """
    from torch._functorch import config

    before = config.donated_buffer
    config.donated_buffer = False

    def put_back() -> None:
        config.donated_buffer = before

    return put_back


def remove_function_mode(mode: TorchFunctionMode) -> int | None:
    """Remove a mode from any position in this thread's stack.

    Returns:
        The number of modes above it; None if it was not in the stack.
    """
    depth = torch._C._len_torch_function_stack()
    if depth == 0:
        return None
    if torch._C._get_function_stack_at(depth - 1) is mode:
        overrides._pop_mode()
        return 0
    stack = overrides._get_current_function_mode_stack()
    if not any(each is mode for each in stack):
        return None
    above = []
    while (top := overrides._pop_mode()) is not mode:
        above.append(top)
    for each in reversed(above):
        overrides._push_mode(each)
    return len(above)


def next_sequence_number() -> int:
    """Return the number that the next autograd node of this thread gets."""
    return int(torch._C._autograd._get_sequence_nr())


def makes_scalar(node: Any) -> bool:
    """Return whether the result of a node's operator is a 0-dimensional tensor."""
    return not node._input_metadata[0].shape


def shape_made(node: Any) -> tuple[int, ...]:
    """Return the shape of the result of a node's operator; () also for a node of Python."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()


def saved_by(node: Any, name: str) -> Any:
    """Return what autograd has saved of an argument of a node's operator; None for nothing."""
    return getattr(node, f"_saved_{name}", None)


def current_node() -> Any:
    """Return the autograd node that runs its backward in this thread, or None in a forward."""
    if torch._C._current_graph_task_id() == -1:
        return None
    return torch._C._current_autograd_node()


def recomputing() -> tuple[Any, str]:
    """Return the module and the name of the function behind checkpoints that are not reentrant."""
    return checkpoint, "_checkpoint_without_reentrant_generator_impl"


def clipping() -> tuple[tuple[Any, str], ...]:
    """Return the modules and names of the function that clips: `clip_grad_norm_`'s, and torch's."""
    return (nn.utils.clip_grad, "_clip_grads_with_norm_"), (nn.utils, "clip_grads_with_norm_")


def total_norm() -> tuple[Any, str]:
    """Return the module and the name of the function with which `clip_grad_norm_` takes a norm."""
    return nn.utils.clip_grad, "_get_total_norm"


def is_on(context: torch.autocast) -> bool:
    """Return whether an autocast has an effect; torch switches one for an absent device off."""
    return bool(context._enabled)


def target_of(process: BaseProcess) -> Callable[..., Any] | None:
    """Return the function that a process will run."""
    target: Callable[..., Any] | None = getattr(process, "_target", None)
    return target


def set_target(process: BaseProcess, target: Callable[..., Any]) -> None:
    """Set the function that a process will run, before it starts."""
    process._target = target  # type: ignore[attr-defined]


def is_tracing() -> bool:
    """Return whether `torch.jit.trace` or an export to ONNX records a graph."""
    return bool(torch._C._is_tracing())


def node_number(node: Any) -> int:
    """Return the sequence number of an autograd node from the forward pass."""
    return int(node._sequence_nr())


def custom_function(frame: FrameType) -> str:
    """Return the name of the user-defined autograd function that a frame runs.

    Functions that torch itself defines do not count.

    Returns:
        The class name, if the frame calls the function's forward or backward; "" otherwise.
    """
    code = frame.f_code
    if code.co_name != "apply" or code.co_filename != torch.autograd.function.__file__:
        return ""
    kind = frame.f_locals.get("cls") or getattr(frame.f_locals.get("self"), "_forward_cls", None)
    return "" if kind is None or is_of_torch(kind) else str(kind.__name__)


def is_of_torch(kind: type[Any]) -> bool:
    """Return whether torch itself defines a class."""
    return kind.__module__.partition(".")[0] == "torch"


def forward_class(node: Any) -> type[Any] | None:
    """Return the user-defined autograd function of a node in a graph; None for other nodes."""
    kind: type[Any] | None = getattr(node, "_forward_cls", None)
    return None if kind is None or is_of_torch(kind) else kind


def raising_function(traceback: TracebackType | None) -> str:
    """Return the name of the innermost user-defined autograd function in a traceback, or ""."""
    found = ""
    while traceback is not None:
        found = custom_function(traceback.tb_frame) or found
        traceback = traceback.tb_next
    return found


def running_function(boundary: str) -> str:
    """Return the name of the innermost user-defined autograd function on the stack, or "".

    Args:
        boundary: The file at whose innermost frame the search stops.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != boundary:
        found = custom_function(frame)
        if found:
            return found
        frame = frame.f_back
    return ""


class _WithoutReentry:
    """Replaces `CheckpointFunction` while gradients are computed with `autograd.grad`."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """Run a block with the results of a reentrant checkpoint, but without reentry."""
        if not any(isinstance(each, torch.Tensor) and each.requires_grad for each in args):
            with torch.no_grad():  # A reentrant checkpoint computes no gradients in this case.
                return function(*args)
        return checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state
        )


@contextmanager
def no_reentrant_checkpoints() -> Iterator[None]:
    """Replace reentrant checkpoints by non-reentrant ones: they do not allow `autograd.grad`."""
    original = checkpoint.CheckpointFunction
    setattr(checkpoint, "CheckpointFunction", _WithoutReentry)  # noqa: B010  # a class
    try:
        yield
    finally:
        setattr(checkpoint, "CheckpointFunction", original)  # noqa: B010


def repeatable(kind: type[torch.autograd.Function]) -> Callable[..., Any] | None:
    """Return a function that applies an autograd function again; None for one that torch defines.

    Reentrant checkpoints are repeated as `no_reentrant_checkpoints` replaces them.
    """
    if kind is checkpoint.CheckpointFunction:
        return _reentrant_checkpoint
    if is_of_torch(kind):
        return None
    return functools.wraps(kind, updated=())(functools.partial(kind.apply))


def _reentrant_checkpoint(*args: Any) -> Any:
    return checkpoint.CheckpointFunction.apply(*args)


def calling_frame() -> FrameType:
    """Return the frame of the caller's caller."""
    return sys._getframe(2)


def changes_inputs(operator: Any) -> bool:
    """Return whether an ATen operator writes to its inputs."""
    return bool(operator._schema.is_mutable)


def tensors_written(operator: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensor arguments of an ATen operator that the operator writes to."""
    if not changes_inputs(operator):
        return []
    arguments = operator._schema.arguments
    given = dict(zip([each.name for each in arguments], args, strict=False)) | kwargs
    written = [each.name for each in arguments if each.alias_info and each.alias_info.is_write]
    return tensors_in([given.get(name) for name in written])


def only_fills_outputs(operator: Any) -> bool:
    """Return whether an ATen operator writes only to its `out=` arguments."""
    arguments = operator._schema.arguments
    written = [each for each in arguments if each.alias_info and each.alias_info.is_write]
    return bool(written) and all(each.is_out for each in written)


def is_operator(value: Any) -> bool:
    """Return whether an object is an operator of torch's dispatcher, not only of TorchScript."""
    return isinstance(value, torch._ops.OpOverload) and torch._C._dispatch_has_kernel(value.name())


def is_of_files(operator: Any) -> bool:
    """Return whether an operator reads or writes a file, or may do so.

    The arguments of some operators have no names, such as those of torchvision 0.26 for files.
    """
    return any(
        each.name == "filename" or (str(each.type) == "str" and each.name.startswith("_"))
        for each in operator._schema.arguments
    )


def padding_of_sequences() -> tuple[Any, str]:
    """Return owner and name of the function that `pad_sequence` calls."""
    return torch._C._nn, "pad_sequence"


def fetchers() -> tuple[type[Any], ...]:
    """Return the classes whose `fetch` reads a batch for a data loader without workers."""
    return fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher


def fetcher_of(iterator: Any) -> Any:
    """Return what fetches the batches for the iterator of a data loader without workers."""
    return getattr(iterator, "_dataset_fetcher", None)


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor of which a tensor is a view; the tensor itself if it is none."""
    return tensor if tensor._base is None else tensor._base


def loader_iterator() -> type[Any]:
    """Return the base class of the iterators of data loaders."""
    return dataloader._BaseDataLoaderIter


def is_cast(operator: Any) -> bool:
    """Return whether an ATen operator is the cast that `Tensor.to` calls."""
    return operator is torch.ops.aten._to_copy.default


def drops_values(module: nn.Module) -> bool:
    """Return whether a module drops values in training mode, and none in evaluation mode."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    share = getattr(module, "drop_prob", None)  # of timm's and torchvision's stochastic depth
    return isinstance(share, float) and share > 0


def norms_with_statistics() -> type[nn.Module]:
    """Return the base class of all norms that can track running statistics."""
    return nn.modules.batchnorm._NormBase


def tracks_statistics(module: nn.Module) -> bool:
    """Return whether a module is a norm that updates running statistics in training mode."""
    return (
        isinstance(module, nn.modules.batchnorm._NormBase)
        and module.track_running_stats
        and module.running_mean is not None
    )


def norms_and_losses() -> tuple[type[nn.Module], ...]:
    """Return the base classes of all norms and of all losses."""
    return norms_with_statistics(), nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.loss._Loss


def is_loss(module: nn.Module) -> bool:
    """Return whether a module is one of torch's losses."""
    return isinstance(module, nn.modules.loss._Loss)


def spectral_vectors(module: nn.Module) -> list[torch.Tensor]:
    """Return the left vectors of the power iterations of a module's own spectral norms."""
    hooks = [each for each in module._forward_pre_hooks.values() if isinstance(each, SpectralNorm)]
    names = [f"{each.name}_u" for each in hooks]
    names += ["_u"] if isinstance(module, _SpectralNorm) else []
    found = [getattr(module, each, None) for each in names]
    return [each for each in found if isinstance(each, torch.Tensor)]


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return a module and its submodules, each once, in a tenth of the time of `Module.modules`."""
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            waiting += [child for child in each._modules.values() if child is not None]
    return list(found.values())


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model, or a module in it, runs through torch.compile."""
    return any(
        isinstance(each, torch._dynamo.OptimizedModule) or each._compiled_call_impl is not None
        for each in model.modules()
    )


def weak_storage(tensor: torch.Tensor) -> StorageWeakRef:
    """Return a reference to a tensor's storage that does not keep its memory."""
    return StorageWeakRef(tensor.untyped_storage())


def storage_number(tensor: torch.Tensor) -> int:
    """Return the number of a storage, unique while the storage or a reference to it exists."""
    return int(tensor.untyped_storage()._cdata)


def version_of(*tensors: torch.Tensor) -> int:
    """Return a number that grows with each write; one made in inference mode does not count."""
    return sum(each._version for each in tensors if not each.is_inference())


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor exists only inside a transform, such as torch.vmap."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def values_of_sparse(tensor: torch.Tensor) -> torch.Tensor:
    """Return the uncoalesced values of a sparse tensor: one element can have several values.

    Coalescing them could take a long time.
    """
    return tensor._values()


def loss_scale_of(scaler: Any) -> torch.Tensor | None:
    """Return a scaler's scale on its device; None before its first use.

    Args:
        scaler: A `torch.amp.GradScaler`, or the engine's scaler.
    """
    name = "_scale" if isinstance(scaler, torch.amp.GradScaler) else "scale"
    scale: torch.Tensor | None = getattr(scaler, name, None)
    return scale


def device_of(scaler: torch.amp.GradScaler) -> str:
    """Return the type of device that a scaler was made for."""
    return str(scaler._device)


def settings_of(scaler: Any) -> dict[str, float]:
    """Return the settings of an enabled scaler by the names of `GradScaler`'s constructor."""
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    if isinstance(scaler, torch.amp.GradScaler):
        return {name: float(getattr(scaler, f"_{name}")) for name in names}
    return {name: float(getattr(scaler.settings, name.removesuffix("_scale"))) for name in names}


def found_inf_of(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the found_inf tensors of an optimizer since the last update, one per device."""
    states = scaler._per_optimizer_states
    if id(optimizer) not in states:
        return []
    return list(states[id(optimizer)]["found_inf_per_device"].values())


def is_dispatch_mode_active() -> bool:
    """Return whether the program runs under a `TorchDispatchMode`, such as a tracer's."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_only_cast_on_cuda(func: Any) -> bool:
    """Return whether autocast runs an operator in fp32 on CUDA, but does not cast it on a CPU.

    Such operators are powers, sums, exponentials and norms.

    Args:
        func: The overload of the operator.
    """
    if func.overloadpacket.__name__ in LOWER | WIDEST:
        return False
    has = func.has_kernel_for_dispatch_key
    return has(torch._C.DispatchKey.AutocastCUDA) and not has(torch._C.DispatchKey.AutocastCPU)


def last_part(scheduler: SequentialLR) -> tuple[LRScheduler, int]:
    """Return the last scheduler of a sequence, and the move with which it begins."""
    return scheduler._schedulers[-1], scheduler._milestones[-1]
