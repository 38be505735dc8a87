import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

torch.set_num_threads(1)
torch.manual_seed(14)


class CausalConv(nn.Module):
    def __init__(self, c_in, c_out, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(c_in, c_out, 3, dilation=dilation)

    def forward(self, x):
        return torch.relu(self.conv(nn.functional.pad(x, (self.pad, 0))))


class TCN(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.layers = nn.Sequential(CausalConv(1, channels, 1), CausalConv(channels, channels, 2),
                                    CausalConv(channels, channels, 4))
        self.head = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        return self.head(self.layers(x))


def sample(n, length=48):
    x = torch.randn(n, 1, length)
    y = torch.zeros_like(x)
    y[..., 6:] = x[..., 6:] * x[..., :-6] + 0.5 * torch.tanh(2 * x[..., 3:-3])
    return x, y


def apply_weight_norm(model):
    for module in model.modules():
        if isinstance(module, CausalConv):
            module.conv = weight_norm(module.conv)


def main(steps=500, lr=5e-3):
    model = TCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    apply_weight_norm(model)
    for step in range(steps):
        x, y = sample(32)
        loss = nn.functional.mse_loss(model(x)[..., 6:], y[..., 6:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"{step}: {loss.item():.4f}")
    model.eval()
    x, y = sample(500)
    with torch.no_grad():
        return nn.functional.mse_loss(model(x)[..., 6:], y[..., 6:]).item()


print("RESULT", main())
