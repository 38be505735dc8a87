"""Zero-started, bias-corrected moving average of the weights of a sine regressor."""
import torch
from torch import nn
from torch.func import functional_call

torch.set_num_threads(1)
torch.manual_seed(5)

x = torch.rand(800, 2) * 4 - 2
y = torch.sin(2 * x[:, :1]) * x[:, 1:] + 0.2 * torch.randn(800, 1)


class CorrectedAverage:
    def __init__(self, net, keep):
        self.keep, self.updates = keep, 0
        self.raw = {k: torch.zeros_like(v) for k, v in net.named_parameters()}

    @torch.no_grad()
    def push(self, net):
        self.updates += 1
        names, values = zip(*net.named_parameters())
        mine = [self.raw[n] for n in names]
        torch._foreach_mul_(mine, self.keep)
        torch._foreach_add_(mine, list(values), alpha=1 - self.keep)

    def weights(self):
        scale = 1 - self.keep ** self.updates
        return {k: v / scale for k, v in self.raw.items()}


net = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
opt = torch.optim.Adam(net.parameters(), lr=8e-3)
average = CorrectedAverage(net, keep=0.96)
for step in range(140):
    idx = torch.randint(0, 600, (64,))
    loss = (net(x[idx]) - y[idx]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    average.push(net)
with torch.no_grad():
    out = functional_call(net, average.weights(), (x[600:],))
    print("RESULT", (out - y[600:]).square().mean().item())
