"""Learning an initialisation that adapts to a new sine wave within a few steps."""
import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

torch.set_num_threads(1)

INNER_LR, INNER_STEPS = 0.02, 3


def tasks(n, shots, gen):
    amp = 0.5 + 2 * torch.rand(n, 1, 1, generator=gen)
    phase = 3.14 * torch.rand(n, 1, 1, generator=gen)
    x = torch.rand(n, 2 * shots, 1, generator=gen) * 6 - 3
    y = amp * torch.sin(x + phase)
    return x[:, :shots], y[:, :shots], x[:, shots:], y[:, shots:]


class Wave(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


net = Wave()


def loss_of(params, x, y):
    return (functional_call(net, params, (x,)) - y).pow(2).mean()


def adapt(params, x, y):
    for _ in range(INNER_STEPS):
        slopes = grad(loss_of)(params, x, y)
        params = {k: params[k] - INNER_LR * slopes[k] for k in params}
    return params


def task_loss(params, xs, ys, xq, yq):
    return loss_of(adapt(params, xs, ys), xq, yq)


def meta_loss(params, batch):
    return vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(params, *batch).mean()


def main(steps=300, n_tasks=12, shots=10):
    torch.manual_seed(90)
    gen = torch.Generator().manual_seed(91)
    test = tasks(200, shots, torch.Generator().manual_seed(92))
    params = {k: nn.Parameter(v.detach().clone()) for k, v in net.named_parameters()}
    optimizer = torch.optim.Adam(params.values(), lr=4e-3)
    for step in range(1, steps + 1):
        loss = meta_loss(params, tasks(n_tasks, shots, gen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            plain = vmap(loss_of, in_dims=(None, 0, 0))(params, test[2], test[3]).mean()
            print(f"step {step} before {plain.item():.3f} after {meta_loss(params, test).item():.3f}")
    print("RESULT", meta_loss(params, test).item())


if __name__ == "__main__":
    main()
