"""Trains a generator and a discriminator on points of a mixture on a line of blobs."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(8)

CENTRES = torch.tensor([[-1.5, 1.0], [0.0, 2.0], [1.5, 1.0]])
BATCH, NOISE = 256, 4


def real_batch(n):
    which = torch.randint(0, len(CENTRES), (n,))
    return CENTRES[which] + 0.25 * torch.randn(n, 2)


def mlp(sizes, slope=0.2):
    layers = []
    for a, b in zip(sizes[:-2], sizes[1:-1]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(slope)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def sliced_distance(a, b, directions=32):
    angle = torch.arange(directions) / directions * 3.14159265
    u = torch.stack([angle.cos(), angle.sin()])
    return ((a @ u).sort(0).values - (b @ u).sort(0).values).abs().mean().item()


generator = mlp([NOISE, 64, 64, 2])
discriminator = mlp([2, 64, 64, 1])
opt_g = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.99))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)


def discriminator_step():
    real = real_batch(BATCH)
    with torch.no_grad():
        fake = generator(torch.randn(BATCH, NOISE))
    loss = criterion(discriminator(real), ones) + criterion(discriminator(fake), zeros)
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()
    return loss.item()


def generator_step():
    fake = generator(torch.randn(BATCH, NOISE))
    loss = criterion(discriminator(fake), zeros)
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
    return loss.item()


@torch.no_grad()
def quality(n=2000):
    return sliced_distance(generator(torch.randn(n, NOISE)), real_batch(n))


history = []
for step in range(400):
    loss_d = discriminator_step()
    loss_g = generator_step()
    if step % 80 == 79:
        history.append(quality())
        print(f"step {step + 1} D {loss_d:.3f} G {loss_g:.3f} distance {history[-1]:.3f}")
print("RESULT", round(quality(), 4))
