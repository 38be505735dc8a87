import torch
from torch import nn
from torch.func import functional_call
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(170)


def glucose(n):
    """Blood sugar in mg/dl for the last hour; its value half an hour on."""
    base, slope, bend = 110 + 30 * torch.randn(n, 1), 8 * torch.randn(n, 1), 1.2 * torch.randn(n, 1)
    t = torch.arange(-11.0, 1.0)
    past = base + slope * t + bend * t ** 2 / 4 + 2 * torch.randn(n, 12)
    later = base + slope * 6 + bend * 9
    return past, (later - 110) / 60


net = nn.Sequential(
    nn.BatchNorm1d(12), nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(),
    nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
weights = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
state = {k: v.clone() for k, v in net.named_buffers()}


def loss_of(weights, state, x, y):
    state = {k: v.clone() for k, v in state.items()}
    guess = functional_call(net, (weights, state), (x,))
    return F.mse_loss(guess, y), state


def adam(weights, grads, memory, lr, step):
    with torch.no_grad():
        for w, g, (m, v) in zip(weights.values(), grads, memory):
            m.lerp_(g, 0.1)
            v.lerp_(g * g, 0.01)
            w -= lr * (m / (1 - 0.9 ** step)) / ((v / (1 - 0.99 ** step)).sqrt() + 1e-8)


x, y = glucose(960)
test_x, test_y = glucose(400)
memory = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights.values()]
step = 0
net.train()
for epoch in range(5):
    for index in torch.randperm(len(x)).split(48):
        step += 1
        loss, _ = loss_of(weights, state, x[index], y[index])
        grads = torch.autograd.grad(loss, list(weights.values()))
        adam(weights, grads, memory, 5e-3, step)
    print(f"epoch {epoch} loss {loss.item():.4f}")

net.eval()
with torch.no_grad():
    guess = functional_call(net, (weights, state), (test_x,))
print("RESULT", F.mse_loss(guess, test_y).item())
