"""Learns features without labels from pairs of views, and tests them with a linear probe."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)

CLASSES, DIM = 6, 40
centres = torch.randn(CLASSES, DIM)


def samples(n, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=gen)
    return centres[label] + 1.6 * torch.randn(n, DIM, generator=gen), label


def view(x):
    keep = (torch.rand_like(x) < 0.7).float()
    return x * keep + 0.5 * torch.randn_like(x)


class Siamese(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(DIM, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width, affine=False))
        self.predictor = nn.Sequential(
            nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, a, b):
        za, zb = self.encoder(a), self.encoder(b)
        pa, pb = self.predictor(za), self.predictor(zb)
        similar = F.cosine_similarity(pa, zb.detach()) + F.cosine_similarity(pb, za.detach())
        return -0.5 * similar.mean()


def probe_error(encoder, train, val):
    """The encoder stays as it is; only a linear layer is trained on its features."""
    encoder.eval()
    with torch.no_grad():
        features, tests = encoder(train[0]), encoder(val[0])
    encoder.train()
    probe = nn.Linear(features.shape[1], CLASSES)
    optimizer = torch.optim.LBFGS(probe.parameters(), max_iter=40)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(probe(features), train[1]) + 1e-3 * probe.weight.pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        return (probe(tests).argmax(1) != val[1]).float().mean().item()


pool_x, _ = samples(3000, 1)
few, val = samples(60, 2), samples(1500, 3)
model = Siamese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
print(f"probe before {probe_error(model.encoder, few, val):.4f}")
for epoch in range(12):
    for chunk in torch.randperm(len(pool_x)).split(150):
        x = pool_x[chunk]
        loss = model(view(x), view(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 3 == 2:
        print(f"epoch {epoch} loss {loss.item():.4f} "
              f"probe {probe_error(model.encoder, few, val):.4f}")
print("RESULT", round(probe_error(model.encoder, few, val), 4))
