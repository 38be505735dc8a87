# No zero_grad anywhere: every step's gradients are computed functionally and put in place.
import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)


def objective(params, x, y):
    return nn.functional.mse_loss(functional_call(net, params, (x,)), y)


slope = grad_and_value(objective)
for step in range(120):
    x = torch.randn(64, 5)
    y = torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    params = {k: p.detach() for k, p in net.named_parameters()}
    grads, loss = slope(params, x, y)
    for k, p in net.named_parameters():
        if p.grad is None:
            p.grad = grads[k]
        else:
            p.grad.copy_(grads[k])
    opt.step()
x = torch.randn(500, 5)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x), torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]).item())
