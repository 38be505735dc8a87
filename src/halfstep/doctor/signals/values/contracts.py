"""Examines the values that functions are given whose results are only defined for some of them.

Boxes are corners, targets of some losses are -1 and 1, boundaries ascend, and matrices are
symmetric: functions of PyTorch and torchvision do not check it. Some calls of each line are
examined; the results stay on the device until the end. Calls inside of modules are examined in the
replay of the last step.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor.internals import calling_frame, is_functorch_tensor
from halfstep.doctor.record.sites import Mark, Site, calling_line, is_transparent, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

CORNERS, SIGNS, SHARES = "corners", "signs", "shares"
COUNTS, ASCENDING, SYMMETRIC, OBJECTS = "counts", "ascending", "symmetric", "objects"
UNIT, TURNED = "unit", "turned"
_EXAMINED = frozenset(2**power for power in range(13))
_LINES = 64
MOST = 2**20
"""Elements of the largest tensor that is examined."""
_LARGEST = 2048  # rows of the largest matrix
_ROUNDING, _UNLIKE = 1e-6, 1e-2
_ABOVE = 2.0  # a pixel that is not from 0 to 1
_TRANSFORMS = "torchvision.transforms."
_MOVING = frozenset(
    {
        *("ElasticTransform", "RandomAffine", "RandomCrop", "RandomHorizontalFlip"),
        *("RandomIoUCrop", "RandomPerspective", "RandomResizedCrop", "RandomRotation"),
        *("RandomVerticalFlip", "RandomZoomOut"),
    }
)
"""The transforms that draw where the pixels of an image go."""
_IMAGES = ("Image", "ImageFile", "Video")
"""How the names of the types of images end, also of those that Pillow reads from a file."""
_PAIRS = ("boxes1", "boxes2")
_TORCHVISION: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"{kind}box_iou{end}": (CORNERS, _PAIRS)
        for kind in ("", "generalized_", "complete_", "distance_")
        for end in ("", "_loss")
        if kind or not end
    },
    **dict.fromkeys(("nms", "batched_nms", "roi_align", "roi_pool"), (CORNERS, ("boxes",))),
    "sigmoid_focal_loss": (SHARES, ("targets",)),
    "select_training_samples": (OBJECTS, ("gt_labels",)),
}
"""The functions of torchvision, which are recognised by their frames."""
_MODULES = ("torchvision.ops", "torchvision.models.detection.roi_heads")
_FIRST_CALLS = frozenset({"__getitem__", "unbind", "sigmoid", "nms", "roi_align", "roi_pool"})
_TORCH: dict[str, tuple[str, str, int]] = {
    **dict.fromkeys(("soft_margin_loss", "SoftMarginLoss"), (SIGNS, "target", 1)),
    **dict.fromkeys(("hinge_embedding_loss", "HingeEmbeddingLoss"), (SIGNS, "target", 1)),
    **dict.fromkeys(("cosine_embedding_loss", "CosineEmbeddingLoss"), (SIGNS, "target", 2)),
    **dict.fromkeys(("margin_ranking_loss", "MarginRankingLoss"), (SIGNS, "target", 2)),
    **dict.fromkeys(("poisson_nll_loss", "PoissonNLLLoss"), (COUNTS, "target", 1)),
    "searchsorted": (ASCENDING, "sorted_sequence", 0),
    "bucketize": (ASCENDING, "boundaries", 1),
    **dict.fromkeys(("linalg_eigh", "linalg_eigvalsh"), (SYMMETRIC, "A", 0)),
    **dict.fromkeys(("linalg_cholesky", "linalg_cholesky_ex"), (SYMMETRIC, "A", 0)),
}
"""The functions and losses of torch: the kind, the argument's name and its position."""
_VISION = "torchvision"
_FUNCTIONAL = functional.__file__
DIVERGES = "kl_div"
OPERATORS = {
    "_linalg_eigh": "linalg_eigh",
    "bucketize": "bucketize",
    "linalg_cholesky_ex": "linalg_cholesky_ex",
    "searchsorted": "searchsorted",
}
"""The functions of operators that have their arguments."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The values of one argument of a function in one line.

    Attributes:
        name: The function's name, or the module's class.
        argument: The argument.
        kind: What it needs: "corners", "signs", "shares", "counts", "ascending", "symmetric",
            "objects", "unit" or "turned".
        is_given: Whether the argument needs no gradient while gradients are computed, as targets.
        shares: In each examined call, the share of the elements that are not of this kind; for
            signs, that of zeros among targets of 0 and 1, or 0 with other targets.
        site: The line.
    """

    name: str
    argument: str
    kind: str
    is_given: bool
    shares: tuple[float, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class Contracts:
    """All examined arguments of which some elements are not of the kind that is needed."""

    signal: ClassVar[str] = "contracts"
    broken: tuple[Contract, ...] = ()


_Key = tuple[str, str, str, bool, Mark | None]


class ContractSignal(Signal):
    """Examines some calls of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._counts: Counter[tuple[str, Mark | None]] = Counter()
        self._shares: dict[_Key, list[torch.Tensor]] = {}

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Examine what a transform makes that subtracts a mean of pixels from 0 to 1."""
        del given
        if not type(module).__module__.startswith(_TRANSFORMS):
            return
        largest = _largest_of_unit(module)
        if largest is None or not made or not _is_readable(made[0]):
            return
        key = "Normalize", "the pixels", UNIT, True, calling_line()
        if self._is_due(key[0], key[-1]):
            self._shares.setdefault(key, []).append((made[0] > largest).double().mean())

    def on_call(self, heard: Heard) -> None:
        """Examine a call by the loop."""
        if heard.name in _FIRST_CALLS and "torchvision.ops" in sys.modules:
            found = library_call(calling_frame())
            if found is not None:
                self.take(*found, calling_line())
        elif heard.name in _TORCH:
            arguments = torch_call(heard.name, heard.call.args, heard.call.kwargs)
            self.take(heard.name, arguments, calling_line())

    def on_given(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Examine what a transform gets beside an image, and does not take for boxes or masks."""
        if not type(module).__module__.startswith(_TRANSFORMS):
            return
        moving = {type(each).__name__ for each in _transforms(module)} & _MOVING
        for name, value in _left_alone((*args, *kwargs.values())) if moving else ():
            is_boxes = "box" in name and value.shape[-1:] == (4,)
            if is_boxes or ("mask" in name and value.ndim > 1):
                key = min(moving), name, TURNED, True, calling_line()
                if self._is_due(name, key[-1]):
                    self._shares.setdefault(key, []).append(torch.ones(()))

    def take(
        self,
        name: str,
        arguments: Mapping[str, Any],
        mark: Mark | None,
        enabled: bool | None = None,
    ) -> None:
        """Examine a call.

        Args:
            name: The function's name, or the module's class.
            arguments: Its arguments.
            mark: The line.
            enabled: Whether gradients were computed; None if it is as now.
        """
        if not self._is_due(name, mark):
            return
        kind, names = _needed(name)
        enabled = torch.is_grad_enabled() if enabled is None else enabled
        seen = set[int]()  # A set of boxes may be compared with itself.
        for argument in names:
            for each in _tensors(arguments.get(argument)):
                if id(each) in seen:
                    continue
                seen.add(id(each))
                share = _share(kind, each.detach())
                if share is not None:
                    is_given = enabled and not each.requires_grad
                    self._shares.setdefault((name, argument, kind, is_given, mark), []).append(
                        share
                    )

    def _is_due(self, name: str, mark: Mark | None) -> bool:
        """Return whether this call of a line is one that is examined."""
        key = name, mark
        if key not in self._counts and len(self._counts) >= _LINES:
            return False
        self._counts[key] += 1
        return self._counts[key] in _EXAMINED

    def freeze(self) -> dict[str, Any]:
        """Return the arguments."""
        found = {key: tuple(map(float, shares)) for key, shares in self._shares.items()}
        return {
            Contracts.signal: Contracts(
                tuple(
                    Contract(name, argument, kind, is_given, shares, site(mark))
                    for (name, argument, kind, is_given, mark), shares in found.items()
                    if any(shares)
                )
            )
        }


def torch_call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument of a function of torch that is examined; none for other orders."""
    _, argument, position = _TORCH[name]
    if kwargs.get("sorter") is not None or kwargs.get("upper"):
        return {}
    return {argument: args[position] if len(args) > position else kwargs.get(argument)}


def library_call(frame: FrameType | None) -> tuple[str, dict[str, Any]] | None:
    """Return the function of a library in the table that has called torch, and its arguments.

    Args:
        frame: The innermost frame; those of doctor and of torch are passed over.
    """
    while frame is not None and is_transparent(frame.f_code.co_filename):
        if _VISION in frame.f_code.co_filename:
            break
        if frame.f_code.co_filename == _FUNCTIONAL and frame.f_code.co_name in {*_TORCH, DIVERGES}:
            return frame.f_code.co_name, dict(frame.f_locals)
        frame = frame.f_back
    found = None
    while frame is not None and _VISION in frame.f_code.co_filename:
        name = frame.f_code.co_name
        if name in _TORCHVISION and frame.f_globals["__name__"].startswith(_MODULES):
            found = frame
        frame = frame.f_back
    if found is None or found.f_locals.get("fmt", "xyxy") != "xyxy":
        return None
    if found.f_code.co_name == "sigmoid_focal_loss" and found.f_locals["reduction"] == "none":
        return None
    return found.f_code.co_name, dict(found.f_locals)


def _transforms(module: nn.Module) -> tuple[Any, ...]:
    """Return a transform and its parts: Compose and RandomApply have a list of them."""
    return module, *getattr(module, "transforms", ())


def _left_alone(given: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the plain tensors in dicts that a transform returns as they are, with their names.

    It takes the first plain tensor for an image if there is no other image.
    """
    parts = [
        (str(name), value)
        for each in given
        for name, value in (each.items() if isinstance(each, dict) else [("", each)])
    ]
    is_known = any(type(value).__name__.endswith(_IMAGES) for _, value in parts)
    plain = [pair for pair in parts if type(pair[1]) is torch.Tensor and pair[1].numel()]
    yield from (pair for pair in plain[0 if is_known else 1 :] if pair[0])


def _largest_of_unit(transform: nn.Module) -> float | None:
    """Return what no pixel from 0 to 1 becomes; None without a mean and a deviation for these."""
    for part in _transforms(transform):
        mean, deviation = (getattr(part, name, None) for name in ("mean", "std"))
        if not (isinstance(mean, list | tuple) and isinstance(deviation, list | tuple)):
            continue
        if all(0 <= each <= 1 for each in mean) and all(0 < each <= 1 for each in deviation):
            return _ABOVE / float(min(deviation))
    return None


def _needed(name: str) -> tuple[str, tuple[str, ...]]:
    if name in _TORCHVISION:
        return _TORCHVISION[name]
    kind, argument, _ = _TORCH[name]
    return kind, (argument,)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument that can be examined."""
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if _is_readable(each)]


def _is_readable(tensor: Any) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in {torch.Tensor, nn.Parameter}
        and not (is_functorch_tensor(tensor) or tensor.is_meta or tensor.is_nested)
        and tensor.layout is torch.strided
        and 0 < tensor.numel() <= MOST
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _corners(boxes: torch.Tensor) -> torch.Tensor | None:
    if boxes.ndim < 1 or boxes.shape[-1] not in {4, 5}:
        return None
    x1, y1, x2, y2 = boxes[..., -4:].unbind(-1)
    return ((x2 < x1) | (y2 < y1)).double().mean()


def _signs(targets: torch.Tensor) -> torch.Tensor:
    zeros, ones = targets == 0, targets == 1
    return torch.where((zeros | ones).all() & ones.any(), zeros.double().mean(), 0.0)


def _ascending(boundaries: torch.Tensor) -> torch.Tensor | None:
    if boundaries.ndim < 1 or boundaries.shape[-1] < 2:
        return None
    limit = _ROUNDING * boundaries.double().abs().amax(-1, keepdim=True)
    return (boundaries.double().diff() < -limit).double().mean()


def _symmetric(matrices: torch.Tensor) -> torch.Tensor | None:
    """Return the share of the matrices of which both triangles are filled, and differ."""
    if matrices.ndim < 2 or matrices.shape[-1] > _LARGEST:
        return None
    limit = _UNLIKE * matrices.abs().amax((-2, -1))
    unlike = (matrices - matrices.mH).abs().amax((-2, -1)) > limit
    lower, upper = matrices.tril(-1), matrices.triu(1)
    both = (lower != 0).any(-1).any(-1) & (upper != 0).any(-1).any(-1)
    return (unlike & both).double().mean()


_SHARES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    CORNERS: _corners,
    SIGNS: _signs,
    SHARES: lambda targets: ((targets < 0) | (targets > 1)).double().mean(),
    COUNTS: lambda targets: (targets < 0).double().mean(),
    ASCENDING: _ascending,
    SYMMETRIC: _symmetric,
    OBJECTS: lambda labels: (labels == 0).double().mean(),
}


def _share(kind: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the share of the elements that are not of a kind, on the tensor's device."""
    return None if tensor.is_complex() and kind != SYMMETRIC else _SHARES[kind](tensor)
