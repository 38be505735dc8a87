"""Energy of small clusters from interatomic distances. A few frames of the trajectory are unphysical."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(2)

N_ATOMS, GRAD_LIMIT = 6, 40.0
iu = torch.triu_indices(N_ATOMS, N_ATOMS, 1)


def frames(n, glitches):
    grid = torch.tensor([[i, j, k] for i in range(3) for j in range(2) for k in range(1)], dtype=torch.float32)
    pos = 1.2 * grid + 0.08 * torch.randn(n, N_ATOMS, 3)
    d = (pos[:, iu[0]] - pos[:, iu[1]]).norm(dim=-1)
    energy = (4 * 0.3 * (d.pow(-6) - 1.5 * d.pow(-3))).sum(1)
    energy = (energy - energy.mean()) / energy.std()
    if glitches:
        energy[torch.rand(n) < 0.01] += 900.0
    inverse = 1.0 / d
    return (inverse - inverse.mean(0)) / inverse.std(0), energy


net = nn.Sequential(nn.Linear(15, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
descriptors, energies = frames(3000, glitches=True)

dropped = 0
for step in range(700):
    idx = torch.randint(0, len(energies), (16,))
    predicted = net(descriptors[idx]).squeeze(1)
    loss = (predicted - energies[idx]).pow(2).mean()
    loss.backward()

    norm = torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])
    if norm > GRAD_LIMIT:
        dropped += 1
        continue

    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(f"step {step:4d}  mse {loss.item():8.4f}  |g| {norm.item():.3f}")

print("frames dropped in", dropped, "steps")
test_x, test_e = frames(800, glitches=False)
with torch.no_grad():
    rmse = (net(test_x).squeeze(1) - test_e).pow(2).mean().sqrt()
print("RESULT", float(rmse))
