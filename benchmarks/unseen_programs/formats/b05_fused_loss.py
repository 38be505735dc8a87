import torch
from torch import nn
from torch.autograd import Function

torch.manual_seed(2)
torch.set_num_threads(1)


class FusedMSE(Function):
    """Mean squared error that keeps only the half-size residual for the backward pass."""

    @staticmethod
    def forward(ctx, pred, target):
        residual = (pred.float() - target).half()
        ctx.save_for_backward(residual)
        ctx.kind = pred.dtype
        return residual.float().square().mean()

    @staticmethod
    def backward(ctx, grad_out):
        (residual,) = ctx.saved_tensors
        slope = residual * 2 / residual.numel()
        return (slope * grad_out).to(ctx.kind), None


def albedo_maps(count, gen, side=64):
    """Small-amplitude reflectance as a function of position and two band values."""
    ax = torch.linspace(-1, 1, side)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    bands = torch.rand(count, 2, side, side, generator=gen)
    grid = torch.stack([yy, xx]).expand(count, 2, side, side)
    inputs = torch.cat([bands, grid], dim=1)
    value = torch.sin(3 * bands[:, 0] + 2 * yy) * (0.5 + bands[:, 1]) + 0.5 * xx * yy
    return inputs, 0.005 * value[:, None]


class PixelNet(nn.Module):
    def __init__(self, width=12, amplitude=0.005):
        super().__init__()
        self.amplitude = amplitude
        self.layers = nn.Sequential(
            nn.Conv2d(4, width, 1), nn.GELU(),
            nn.Conv2d(width, width, 1), nn.GELU(),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, x):
        return self.amplitude * self.layers(x)


def train(net, data, epochs, per_step):
    inputs, targets = data
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10_000)
    for epoch in range(epochs):
        order = torch.randperm(len(inputs))
        for chunk in order.split(per_step):
            with torch.autocast("cpu", torch.bfloat16):
                pred = net(inputs[chunk])
            loss = FusedMSE.apply(pred.float(), targets[chunk])
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        if epoch % 10 == 0:
            print(f"epoch {epoch} loss {loss.item():.3e} scale {scaler.get_scale():.0f}")


@torch.no_grad()
def unexplained(net, data):
    inputs, targets = data
    pred = net(inputs)
    return ((pred - targets).square().mean() / targets.var()).item()


def main():
    gen = torch.Generator().manual_seed(7)
    train_set = albedo_maps(64, gen)
    val_set = albedo_maps(8, gen)
    net = PixelNet()
    train(net, train_set, epochs=60, per_step=32)
    print("RESULT", unexplained(net, val_set))


main()
