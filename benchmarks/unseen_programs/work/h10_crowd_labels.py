"""Galaxy shapes from crowd labels, which the training refines in place after each epoch."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(50)

SHAPES, FEATURES = 4, 16


def galaxies(n, gen):
    centre = torch.randn(SHAPES, FEATURES, generator=torch.Generator().manual_seed(501))
    y = torch.randint(0, SHAPES, (n,), generator=gen)
    x = centre[y] + 0.9 * torch.randn(n, FEATURES, generator=gen)
    return torch.cat([x, (x[:, :4] * x[:, 4:8])], 1), y


def crowd_votes(y, gen, wrong=0.4):
    """One vote for each galaxy; four in ten voters click on a random shape."""
    noisy = torch.where(
        torch.rand(len(y), generator=gen) < wrong,
        torch.randint(0, SHAPES, (len(y),), generator=gen), y,
    )
    return F.one_hot(noisy, SHAPES).float()


class RefinedTargets:
    """Temporal ensembling: the stored targets move towards the model's own answers."""

    def __init__(self, votes, keep=0.8, start=3):
        self.targets, self.keep, self.start = votes, keep, start

    @torch.no_grad()
    def refine(self, model, x, epoch):
        if epoch < self.start:
            return
        model.eval()
        self.targets.mul_(self.keep).add_(model(x).softmax(1), alpha=1 - self.keep)
        model.train()

    def sharpness(self):
        return self.targets.amax(1).mean().item()


def build():
    return nn.Sequential(
        nn.Linear(FEATURES + 4, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, SHAPES)
    )


def main(epochs=10, batch=48):
    gen = torch.Generator().manual_seed(500)
    x, y = galaxies(1500, gen)
    v_x, v_y = galaxies(800, gen)
    store = RefinedTargets(crowd_votes(y, gen))
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

    @torch.no_grad()
    def validate():
        model.eval()
        logits = model(v_x)
        model.train()
        return F.cross_entropy(logits, v_y).item(), (logits.argmax(1) != v_y).float().mean().item()

    for epoch in range(epochs):
        for pick in torch.randperm(len(x), generator=gen).split(batch):
            log_p = model(x[pick]).log_softmax(1)
            loss = -(store.targets[pick] * log_p).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        store.refine(model, x, epoch)
        opt.param_groups[0]["lr"] *= 0.8
        v, wrong = validate()
        print(f"epoch {epoch} val {v:.4f} wrong {wrong:.3f} sharpness {store.sharpness():.3f}")
    print(f"RESULT {validate()[1]:.5f}")


if __name__ == "__main__":
    main()
