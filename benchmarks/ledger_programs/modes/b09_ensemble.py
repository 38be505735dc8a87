"""Train an ensemble in one go with torch.func."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, stack_module_state

torch.manual_seed(0)
torch.set_num_threads(1)
K = 3


def make_net():
    return nn.Sequential(nn.Linear(15, 96), nn.ReLU(), nn.Dropout(0.6),
                         nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.6), nn.Linear(96, 2))


w = torch.randn(15, 2)


def data(n):
    x = torch.randn(n, 15)
    return x, (x @ w + 2.0 * torch.randn(n, 2)).argmax(-1)


tx, ty = data(160)
vx, vy = data(1500)

models = [make_net() for _ in range(K)]
with torch.no_grad():
    for m in models:
        m.eval()
    print("untrained:", [round(F.cross_entropy(m(vx), vy).item(), 3) for m in models])
skeleton = copy.deepcopy(models[0]).to("meta")
for m in models:
    m.train()
params, buffers = stack_module_state(models)
params = {k: v.detach().requires_grad_(True) for k, v in params.items()}


def call(p, b, x):
    return functional_call(skeleton, (p, b), (x,))


forward = torch.vmap(call, in_dims=(0, 0, None), randomness="different")
opt = torch.optim.Adam(params.values(), lr=3e-3)
for epoch in range(40):
    for idx in torch.randperm(len(tx)).split(32):
        logits = forward(params, buffers, tx[idx])
        loss = sum(F.cross_entropy(l, ty[idx]) for l in logits)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 10 == 0:
        print(epoch, loss.item() / K)

with torch.no_grad():
    skeleton.eval()
    losses = [F.cross_entropy(l, vy).item() for l in forward(params, buffers, vx)]
print("result:", sum(losses) / K)
