import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)

x = torch.linspace(-2, 2, 120).unsqueeze(1)
y = torch.sin(3 * x) * torch.exp(-0.3 * x ** 2)
xt = torch.linspace(-1.95, 1.95, 77).unsqueeze(1)
yt = torch.sin(3 * xt) * torch.exp(-0.3 * xt ** 2)

net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
evals = 0


def fit_lbfgs(net, rounds):
    opt = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=20, history_size=30, line_search_fn="strong_wolfe")

    def closure():
        global evals
        evals += 1
        if torch.is_grad_enabled():
            opt.zero_grad()
        loss = (net(x) - y).pow(2).mean() + 1e-7 * sum(p.pow(2).sum() for p in net.parameters())
        if loss.requires_grad:
            loss.backward()
        return loss

    for r in range(rounds):
        before = opt.step(closure)
        if r % 3 == 0:
            print(f"round {r} loss {before.item():.6f} evals {evals}")


fit_lbfgs(net, 10)
with torch.no_grad():
    print(f"result: {(net(xt) - yt).pow(2).mean().item():.6f}")
