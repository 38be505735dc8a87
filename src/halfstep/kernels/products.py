"""Selects the arithmetic of products for each dtype, with one registration per device.

Products are the operators that tensor cores compute: convolutions, matrix products and attention,
forward and backward. The dispatcher accepts only one Python kernel per operator. So code that
computes products in another way claims a dtype here, and the newest open claim applies.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from halfstep.kernels.native.small import SmallProducts
from halfstep.kernels.registration import Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halfstep.kernels.registration import Kernel


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that computes a product.

    Attributes:
        name: Name in ATen, without the overload.
        factors: Positions of the arguments that are multiplied with each other. An argument that is
            only added is not among them.
    """

    name: str
    factors: tuple[int, ...]


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("convolution", (0, 1)),
        Operator("convolution_backward", (0, 1, 2)),
        Operator("mm", (0, 1)),
        Operator("bmm", (0, 1)),
        Operator("addmm", (1, 2)),
        Operator("baddbmm", (1, 2)),
        Operator("addbmm", (1, 2)),
        Operator("addmv", (1, 2)),
        Operator("dot", (0, 1)),
        Operator("vdot", (0, 1)),
    )
}
_IN_PLACE = ("addmm", "baddbmm", "addbmm", "addmv")
_OUT = ("mm", "bmm", *_IN_PLACE)
_NUMBERS = frozenset({bool, int, list, type(None)})
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


class Arithmetic(Protocol):
    """A way to compute products. `original` calls the kernel that was registered before."""

    @property
    def format(self) -> str | None:
        """The format of the products, such as "tf32"; None if it is that of the tensors' dtype."""

    @property
    def only_widens(self) -> bool:
        """Whether half products are computed in fp32 and rounded once.

        If so, `native/small.cpp` computes the products of small tensors.
        """

    def product(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compute one operator; all its tensor arguments have the claimed dtype."""

    def attention(
        self,
        original: Callable[..., Any],
        tensors: tuple[torch.Tensor, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, ...]:
        """Compute fused attention, or its backward, on `tensors` of the claimed dtype.

        `args` are the arguments after `tensors`. Among them, logsumexp is fp32 for every dtype.
        """


class Products:
    """The products of one device.

    Args:
        dispatch_key: "CPU" or "CUDA".
    """

    def __init__(self, dispatch_key: str) -> None:
        self._claims: dict[object, Mapping[torch.dtype, Arithmetic | None]] = {}
        self._chosen: dict[torch.dtype, Arithmetic] = {}
        # Re-entrant, because the garbage collector may close another claim in the same thread.
        self._lock = threading.RLock()
        self._small = SmallProducts(OPERATORS) if dispatch_key == "CPU" else None
        self._overrides = Overrides(
            dispatch_key, lambda: self._kernels(dispatch_key), on_top=self._small
        )

    @property
    def registered(self) -> bool:
        """Whether kernels are registered that may replace PyTorch's."""
        return self._overrides.registered

    def arithmetic(self, dtype: torch.dtype) -> Arithmetic | None:
        """Return the arithmetic of `dtype` that applies now; None for PyTorch's own kernels."""
        return self._chosen.get(dtype)

    @contextmanager
    def computed(self, arithmetics: Mapping[torch.dtype, Arithmetic | None]) -> Iterator[None]:
        """Claim dtypes: compute their products with `arithmetics`, in every thread of the process.

        Args:
            arithmetics: The arithmetic of each claimed dtype. None selects PyTorch's kernels, even
                if an older claim is open.
        """
        claim = object()
        with self._lock:
            self._claims[claim] = dict(arithmetics)
            self._choose()
        try:
            if any(arithmetics.values()):
                with self._overrides.held():
                    yield
            else:
                yield
        finally:
            with self._lock:
                del self._claims[claim]
                self._choose()

    def _choose(self) -> None:
        newest: dict[torch.dtype, Arithmetic | None] = {}
        for arithmetics in list(self._claims.values()):
            newest |= arithmetics
        self._chosen = {dtype: way for dtype, way in newest.items() if way is not None}
        if self._small:
            widened = {dtype for dtype, way in self._chosen.items() if way.only_widens}
            self._small.choose(widened, others=len(widened) < len(self._chosen))

    def _kernels(self, dispatch_key: str) -> dict[str, Kernel | None]:
        aten = torch.ops.aten
        kernels: dict[str, Kernel | None] = {
            name: self._returning(operator) for name, operator in OPERATORS.items()
        }
        for suffix, names in (("_", _IN_PLACE), (".out", _OUT)):
            for name in names:
                kernels[name + suffix] = self._writing(OPERATORS[name], getattr(aten, name).default)
        if dispatch_key == "CPU":
            kernels[_ATTENTION] = self._attention(3)
            kernels[f"{_ATTENTION}_backward"] = self._attention(5)
        return kernels

    def _returning(self, operator: Operator) -> Kernel:
        def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            arithmetic = self._for((*args, *kwargs.values()) if kwargs else args)
            if arithmetic is None:
                return original(*args, **kwargs)
            return arithmetic.product(operator, original, args, kwargs)

        return kernel

    def _writing(self, operator: Operator, function: Callable[..., torch.Tensor]) -> Kernel:
        """Return the kernel of the in-place and `out=` overloads of `function`."""

        def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            arithmetic = self._for((*args, *kwargs.values()))
            if arithmetic is None:
                return original(*args, **kwargs)
            target: torch.Tensor = kwargs.pop("out", args[0])
            result = arithmetic.product(operator, function, args, kwargs)
            if target.shape != result.shape:
                target.resize_(result.shape)
            return target.copy_(result)

        return kernel

    def _attention(self, count: int) -> Kernel:
        def kernel(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            tensors, others = args[:count], args[count:]
            arithmetic = self._for(tensors)
            if arithmetic is None:
                return original(*args, **kwargs)
            return arithmetic.attention(original, tensors, others, kwargs)

        return kernel

    def _for(self, values: Iterable[Any]) -> Arithmetic | None:
        """Return the arithmetic of the dtype that all tensors among `values` have.

        For tensors of different dtypes, return None, so that the original kernel raises its error.
        """
        shared = None
        for value in values:
            # The first check is for speed: most products have more numbers than tensors.
            if type(value) not in _NUMBERS and isinstance(value, torch.Tensor):
                dtype = value.dtype
                if shared is not None and dtype is not shared:
                    return None
                shared = dtype
        return None if shared is None else self._chosen.get(shared)


ON = {"cpu": Products("CPU"), "cuda": Products("CUDA")}
"""The `Products` of each device type."""
