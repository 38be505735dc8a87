"""Energy model fitted to energies and forces of small clusters; energies are noisy, forces are precise."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
ATOMS = 4
FORCE_WEIGHT = 20.0


def reference(pos):
    i, j = torch.triu_indices(ATOMS, ATOMS, 1)
    r = (pos[:, i] - pos[:, j]).norm(dim=-1)
    return ((1 - torch.exp(-1.5 * (r - 1.2))) ** 2).sum(1)


def clusters(n, seed):
    g = torch.Generator().manual_seed(seed)
    base = torch.tensor([[0.0, 0.0], [1.2, 0.0], [0.0, 1.2], [1.2, 1.2]])
    pos = (base + 0.13 * torch.randn(n, ATOMS, 2, generator=g)).requires_grad_(True)
    energy = reference(pos)
    forces = -torch.autograd.grad(energy.sum(), pos)[0]
    noisy = energy.detach() + 1.0 * torch.randn(n, generator=g)
    return pos.detach(), noisy, forces


class PairEnergy(nn.Module):
    def __init__(self, n_basis=16, width=48):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0.3, 3.0, n_basis))
        self.pairs = nn.Sequential(
            nn.Linear(n_basis, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, pos):
        i, j = torch.triu_indices(ATOMS, ATOMS, 1)
        r = (pos[:, i] - pos[:, j]).norm(dim=-1, keepdim=True)
        return self.pairs(torch.exp(-8.0 * (r - self.centres) ** 2)).sum((1, 2))


def energy_and_forces(model, pos):
    pos = pos.detach().requires_grad_(True)
    energy = model(pos)
    (grad,) = torch.autograd.grad(energy.sum(), pos, retain_graph=True)
    return energy, -grad


def train(model, data, epochs=80, batch=25):
    pos, e_ref, f_ref = data
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.96)
    for epoch in range(epochs):
        for idx in torch.randperm(len(pos)).split(batch):
            energy, forces = energy_and_forces(model, pos[idx])
            e_loss = (energy - e_ref[idx]).pow(2).mean()
            f_loss = (forces - f_ref[idx]).pow(2).mean()
            loss = e_loss + FORCE_WEIGHT * f_loss
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch} energy {e_loss.item():.3f} force {f_loss.item():.4f}")


def force_rmse(model, data):
    pos, _, f_ref = data
    _, forces = energy_and_forces(model, pos)
    return (forces.detach() - f_ref).pow(2).mean().sqrt().item()


if __name__ == "__main__":
    torch.manual_seed(2)
    model = PairEnergy()
    train(model, clusters(200, 5))
    print("RESULT", force_rmse(model, clusters(300, 6)))
