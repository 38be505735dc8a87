"""Meta-learn a starting point from which a dose-response curve is fitted in a few steps."""
import torch
torch.set_num_threads(1)
torch.manual_seed(180)
from torch import nn
from torch.func import functional_call

SHOTS, QUERIES = 8, 24


class Patient:
    """One patient: a sinusoidal response to the time of a dose."""

    def __init__(self, gen=None):
        self.gain = 0.5 + 2 * torch.rand(1, generator=gen)
        self.delay = torch.rand(1, generator=gen) * 3.1
        self.gen = gen

    def sample(self, n):
        x = torch.rand(n, 1, generator=self.gen) * 6 - 3
        y = self.gain * torch.sin(x + self.delay)
        return x, y + 0.02 * torch.randn(n, 1, generator=self.gen)


def make_model():
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(),
                         nn.Linear(40, 1))


def mse(a, b):
    return ((a - b) ** 2).mean()


def adapt(model, x, y, rate, steps, train):
    params = dict(model.named_parameters())
    for _ in range(steps):
        loss = mse(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=train)
        params = {k: p - rate * g for (k, p), g in zip(params.items(), grads)}
    return params


def meta_loss(model, patients, rate, steps, train=True):
    losses = []
    for patient in patients:
        x_s, y_s = patient.sample(SHOTS)
        x_q, y_q = patient.sample(QUERIES)
        fitted = adapt(model, x_s, y_s, rate, steps, train)
        losses.append(mse(model(x_q), y_q))
    return torch.stack(losses).mean()


def after_fitting(model, rate, steps, n=60):
    gen = torch.Generator().manual_seed(77)
    errors = []
    for _ in range(n):
        patient = Patient(gen)
        x_s, y_s = patient.sample(SHOTS)
        x_q, y_q = patient.sample(QUERIES)
        fitted = adapt(model, x_s, y_s, rate, steps, train=False)
        with torch.no_grad():
            errors.append(mse(functional_call(model, fitted, (x_q,)), y_q))
    return torch.stack(errors).mean().item()


model = make_model()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 260, eta_min=2e-4)
for step in range(260):
    loss = meta_loss(model, [Patient() for _ in range(4)], rate=0.1, steps=2)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    sched.step()
    if step % 65 == 0:
        print(f"step {step} meta loss {loss.item():.4f} "
              f"fitted {after_fitting(model, 0.1, 2, 20):.4f}")

print("RESULT", after_fitting(model, 0.1, 2))
