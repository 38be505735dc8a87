"""Two parameters, five gradients for each, and a way to run an optimizer over them."""

import pytest
import torch


class Trajectory:
    """Fixed float64 weights and gradients; large enough gradients that a clip at 1 acts."""

    def __init__(self, steps: int = 5) -> None:
        generator = torch.Generator().manual_seed(0)
        shapes = [(4, 3), (5,)]

        def draw(shape):
            return torch.randn(shape, dtype=torch.float64, generator=generator)

        self.weights = [draw(shape) for shape in shapes]
        self.grads = [[draw(shape) for shape in shapes] for _ in range(steps)]

    def rounded(self, dtype):
        """The same numbers, as `dtype` holds them, in float64."""
        other = Trajectory(len(self.grads))
        other.weights = [w.to(dtype).double() for w in self.weights]
        other.grads = [[g.to(dtype).double() for g in gs] for gs in self.grads]
        return other

    def run(self, build, dtype=torch.float32, steps=None, params=None, optimizer=None):
        """Return the parameters after the steps, and the optimizer."""
        if params is None:
            params = [torch.nn.Parameter(w.to(dtype)) for w in self.weights]
            optimizer = build(params)
        for grads in self.grads[slice(*steps) if steps else slice(None)]:
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.to(dtype)
            optimizer.step()
        return params, optimizer

    def reference(self, rule, **settings):
        """Run a rule for one parameter on each."""
        return [
            rule(weight, [grads[i] for grads in self.grads], **settings)
            for i, weight in enumerate(self.weights)
        ]


@pytest.fixture
def trajectory():
    return Trajectory()
