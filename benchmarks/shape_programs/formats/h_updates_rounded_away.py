"""A bf16 network follows its fp32 originals by a hook that runs after each optimizer step."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(6, 48), nn.GELU(), nn.Linear(48, 1)).to(torch.bfloat16)
originals = [p.detach().float().requires_grad_() for p in net.parameters()]
optimizer = torch.optim.SGD(originals, lr=0.02, momentum=0.9)


def hand_down(*_):
    with torch.no_grad():
        for p, o in zip(net.parameters(), originals):
            p.copy_(o)
            p.grad = None


optimizer.register_step_post_hook(hand_down)
w = torch.randn(6)
for step in range(150):
    x = torch.randn(64, 6)
    y = (x @ w).tanh()[:, None]
    out = net(x.bfloat16()).float()
    (out - y).pow(2).mean().backward()
    for o, p in zip(originals, net.parameters()):
        o.grad = p.grad.float()
    optimizer.step()
x = torch.randn(1000, 6)
with torch.no_grad():
    print("RESULT", (net(x.bfloat16()).float() - (x @ w).tanh()[:, None]).pow(2).mean().item())
