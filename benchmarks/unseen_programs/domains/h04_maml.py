import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.set_num_threads(1)
torch.manual_seed(10)

INNER_LR, INNER_STEPS, META_BATCH, SHOTS = 0.03, 3, 12, 10


def sample_tasks(n, gen=None):
    amp = 0.5 + 2 * torch.rand(n, 1, 1, generator=gen)
    phase = 3.14 * torch.rand(n, 1, 1, generator=gen)
    xs = torch.rand(n, SHOTS, 1, generator=gen) * 8 - 4
    xq = torch.rand(n, 2 * SHOTS, 1, generator=gen) * 8 - 4
    return xs, amp * torch.sin(xs + phase), xq, amp * torch.sin(xq + phase)


net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
params = {k: p for k, p in net.named_parameters()}


def mse(p, x, y):
    return (functional_call(net, p, (x,)) - y).pow(2).mean()


def adapt(p, x, y, steps):
    for _ in range(steps):
        g = grad(mse)(p, x, y)
        p = {k: p[k] - INNER_LR * g[k] for k in p}
    return p


def task_loss(p, xs, ys, xq, yq):
    return mse(adapt(p, xs, ys, INNER_STEPS), xq, yq)


def validate(steps):
    frozen = {k: p.detach() for k, p in params.items()}
    tasks = sample_tasks(200, torch.Generator().manual_seed(7))

    def one(xs, ys, xq, yq):
        return mse(adapt(frozen, xs, ys, steps), xq, yq)
    return vmap(one)(*tasks).mean().item()


meta_opt = torch.optim.Adam(net.parameters(), lr=2e-3)
print(f"before: no adaptation {validate(0):.3f}, after 5 steps {validate(5):.3f}")
for it in range(900):
    tasks = sample_tasks(META_BATCH)
    loss = vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(params, *tasks).mean()
    meta_opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    meta_opt.step()
    if it % 150 == 149:
        print(f"iteration {it} meta loss {loss.item():.3f} plain {validate(0):.3f} adapted {validate(5):.3f}")
print("RESULT", validate(5))
