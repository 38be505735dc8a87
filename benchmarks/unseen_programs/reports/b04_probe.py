"""Pretrain a backbone on a big labelled set, then probe it on a small one."""
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)


class Backbone(nn.Module):
    def __init__(self, d_in=12, width=128):
        super().__init__()
        self.fc1 = nn.Linear(d_in, width)
        self.fc2 = nn.Linear(width, 64)

    def forward(self, x):
        return F.relu(self.fc2(F.relu(self.fc1(x))))


class Classifier(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(64, n_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


class Module(nn.Module):
    """Bundles model, loss and optimizer, like the big frameworks do."""

    def __init__(self, model, lr):
        super().__init__()
        self.model = model
        self.lr = lr

    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=self.lr)


def measure(n, seed):
    gen = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 2, (n, 8), generator=gen).float() * 2 - 1
    bits = (raw[:, 0::2] * raw[:, 1::2] > 0).long()
    x = torch.cat([raw + 0.35 * torch.randn(n, 8, generator=gen), torch.randn(n, 4, generator=gen)], 1)
    return x, bits


def fit(module, x, y, epochs, batch_size):
    optimizer = module.configure_optimizers()
    module.train()
    for epoch in range(epochs):
        perm = torch.randperm(len(x))
        total = 0.0
        for i in range(0, len(x), batch_size):
            idx = perm[i:i + batch_size]
            loss = module.training_step((x[idx], y[idx]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        if epoch % max(1, epochs // 5) == 0:
            print(f"  epoch {epoch} loss {total / len(x):.4f}")


def main():
    workdir = tempfile.mkdtemp()
    path = os.path.join(workdir, "pretrained.ckpt")

    x, bits = measure(4000, seed=1)
    combo = (bits * torch.tensor([8, 4, 2, 1])).sum(1)
    big = Module(Classifier(16), lr=3e-3)
    print("pretraining")
    fit(big, x, combo, epochs=10, batch_size=64)
    torch.save({"state_dict": big.state_dict(), "epoch": 10}, path)

    probe = Classifier(3)
    state = torch.load(path)["state_dict"]
    state = {k: v for k, v in state.items() if "head" not in k}
    probe.load_state_dict(state, strict=False)
    for p in probe.backbone.parameters():
        p.requires_grad_(False)

    x, bits = measure(90, seed=2)
    print("probing")
    fit(Module(probe, lr=1e-2), x, bits[:, 0] + bits[:, 1], epochs=60, batch_size=30)

    probe.eval()
    x, bits = measure(2000, seed=3)
    with torch.no_grad():
        accuracy = (probe(x).argmax(1) == bits[:, 0] + bits[:, 1]).float().mean().item()
    print("RESULT", 1 - accuracy)


if __name__ == "__main__":
    main()
