"""Concentration from spectra: few samples, many channels, a weight penalty on the matrices."""
import torch
import torch.nn as nn

torch.set_num_threads(1)


def spectra(n, basis, noise):
    conc = torch.rand(n, basis.shape[0])
    x = conc @ basis + noise * torch.randn(n, basis.shape[1])
    return x, 3 * conc[:, :1]


def make_net(channels):
    return nn.Sequential(nn.Linear(channels, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))


class Ridge:
    """Squared error plus a penalty on every weight matrix (biases are free)."""

    def __init__(self, net, strength):
        self.net = net
        self.strength = strength
        self.matrices = (p for name, p in net.named_parameters() if name.endswith("weight"))

    def penalty(self):
        return self.strength * sum((w.pow(2).sum() for w in self.matrices), torch.zeros(()))

    def __call__(self, x, y):
        return nn.functional.mse_loss(self.net(x), y) + self.penalty()


def run():
    torch.manual_seed(21)
    channels = 300
    centre = torch.rand(5, 1)
    basis = torch.exp(-((torch.linspace(0, 1, channels) - centre) / 0.08) ** 2)
    x, y = spectra(90, basis, 0.4)
    y = y + 0.7 * torch.randn_like(y)
    xt, yt = spectra(2000, basis, 0.4)
    net = make_net(channels)
    objective = Ridge(net, strength=8e-3)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(150):
        for idx in torch.randperm(len(x)).split(30):
            opt.zero_grad()
            loss = objective(x[idx], y[idx])
            loss.backward()
            opt.step()
        if epoch % 25 == 0:
            print(f"epoch {epoch:3d}  loss {loss.item():.4f}")
    with torch.no_grad():
        return nn.functional.mse_loss(net(xt), yt).item()


print("RESULT", run())
