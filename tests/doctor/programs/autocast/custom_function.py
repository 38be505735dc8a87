"""A linear layer written as an autograd function, under autocast."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "CUSTOM_FUNCTION_UNDER_AUTOCAST"


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight):
        ctx.save_for_backward(features, weight)
        return features @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        features, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ features


class Decorated(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, features, weight):
        return Product.forward(ctx, features, weight)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        return Product.backward(ctx, gradient)


class Layer(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 6) * 0.1)
        self.function = function

    def forward(self, images):
        return self.function.apply(images, self.weight)


def train(function, factor: float = 1.0) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Layer(function))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images * factor), labels)
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(Product)


def mended() -> None:
    train(Decorated)


class Cubed(torch.autograd.Function):
    """Its forward computes a product in fp32, and its backward computes it in fp16."""

    @staticmethod
    def forward(ctx, features, weight):
        product = features.float() @ weight.t()
        ctx.save_for_backward(features, weight, product.half())
        return product.float().pow(3) * 1e-9

    @staticmethod
    def backward(ctx, gradient):
        features, weight, product = ctx.saved_tensors
        inner = (product * product).float() * 3e-9 * gradient.float()
        return inner @ weight.float(), inner.t() @ features.float()


def broken_overflows_in_its_backward() -> None:
    train(Cubed, 2e3)


class Sign(torch.autograd.Function):
    """A straight-through estimator, which needs no decorator."""

    @staticmethod
    def forward(ctx, features, weight):
        return features.sign() @ weight.sign().t().to(features.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.repeat(1, 2), None


def healthy_straight_through() -> None:
    train(Sign)


class Swish(torch.autograd.Function):
    """Its backward computes an exponential in the format of its input."""

    @staticmethod
    def forward(ctx, features):
        ctx.save_for_backward(features)
        return features * torch.sigmoid(features)

    @staticmethod
    def backward(ctx, gradient):
        (features,) = ctx.saved_tensors
        exponential = torch.exp(features)
        share = exponential / (1 + exponential)
        return gradient * (share + features * share * (1 - share))


def broken_in_a_function_that_the_loop_applies() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Linear(6, 3)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(8):
        optimizer.zero_grad()
        with half_autocast():
            outputs = second(Swish.apply(first(images * 20)))
            loss = nn.functional.cross_entropy(outputs, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
