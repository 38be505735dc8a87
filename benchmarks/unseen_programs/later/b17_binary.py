import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(31)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return (x.abs() <= 1).to(grad_output.dtype)


class HashNet(nn.Module):
    def __init__(self, d, bits, k):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, bits))
        self.dec = nn.Linear(bits, k)

    def forward(self, x):
        return self.dec(Sign.apply(self.enc(x)))


mu = torch.randn(10, 16)


def points(n):
    y = torch.randint(0, 10, (n,))
    return mu[y] + 0.6 * torch.randn(n, 16), y


x, y = points(3000)
xv, yv = points(1000)
net = HashNet(16, 8, 10)
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(12):
    for idx in torch.randperm(3000).split(50):
        loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        err = (net(xv).argmax(1) != yv).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} err {err:.3f}")
print("RESULT", err)
