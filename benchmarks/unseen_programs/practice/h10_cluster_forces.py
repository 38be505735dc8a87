"""Fit the energy of small atom clusters, with forces in every other step."""
import torch
torch.set_num_threads(1)
torch.manual_seed(391)
from torch import nn

ATOMS, BATCH, STEPS = 4, 48, 360
I, J = torch.triu_indices(ATOMS, ATOMS, 1)


def pair_energy(pos):
    r = (pos[:, I] - pos[:, J]).norm(dim=2)
    well = (1 - torch.exp(-1.5 * (r - 1.2))) ** 2 - 1
    return well.sum(1)


def clusters(n, gen):
    base = torch.tensor([[0., 0, 0], [1.2, 0, 0], [0, 1.2, 0], [0, 0, 1.2]])
    pos = (base + 0.15 * torch.randn(n, ATOMS, 3, generator=gen)).requires_grad_(True)
    energy = pair_energy(pos)
    force = -torch.autograd.grad(energy.sum(), pos)[0]
    noise = 0.02 * torch.randn(n, generator=gen)
    return pos.detach(), energy.detach() + noise, force


class EnergyModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(12, width), nn.SiLU(), nn.Linear(width, width),
                                  nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centres", torch.linspace(0.4, 2.4, 12))

    def forward(self, pos):
        r = (pos[:, I] - pos[:, J]).norm(dim=2)
        basis = torch.exp(-8 * (r[..., None] - self.centres) ** 2)
        return self.pair(basis).sum((1, 2))


def predict_force(model, pos, training):
    pos = pos.detach().requires_grad_(True)
    energy = model(pos)
    grad, = torch.autograd.grad(energy.sum(), pos, create_graph=training)
    return energy, -grad


def hard_positions(model, pos, energy, size=0.03):
    """Moves the atoms to where the model errs more; the labels are computed anew."""
    pos = pos.detach().requires_grad_(True)
    err = (model(pos) - energy).square().sum()
    direction, = torch.autograd.grad(err, pos)
    moved = pos.detach() + size * direction.sign()
    return moved, pair_energy(moved)


gen = torch.Generator().manual_seed(2)
pos, energy, force = clusters(1500, gen)
v_pos, v_energy, v_force = clusters(400, gen)
model = EnergyModel()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min(s / 15, 1.0) * (1 - 0.95 * s / STEPS))


def force_error():
    _, f = predict_force(model, v_pos, training=False)
    return (f - v_force).square().mean().item()


for step in range(STEPS):
    rows = torch.randint(len(pos), (BATCH,))
    x, e = hard_positions(model, pos[rows], energy[rows])
    loss = (model(x) - e).square().mean()
    if step % 2 == 0:
        e_hat, f_hat = predict_force(model, pos[rows], training=True)
        loss = loss + 0.2 * (f_hat - force[rows]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 72 == 0:
        print(f"step {step} loss {loss.item():.4f} force error {force_error():.4f}")

print("RESULT", force_error())
