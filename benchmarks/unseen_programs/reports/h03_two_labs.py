"""Features that do not tell from which lab a measurement comes."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.weight * grad, None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.label = nn.Linear(16, 3)
        self.lab = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, weight):
        f = self.features(x)
        return self.label(f), self.lab(Reverse.apply(f, weight)).squeeze(1)


def lab_data(n, which, seed, prior):
    gen = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(prior), n, replacement=True, generator=gen)
    x = torch.randn(n, 12, generator=gen)
    x[torch.arange(n), y] += 2.2
    x[torch.arange(n), 3 + y] += 1.2
    x[:, 6:8] += 2.0 * which - 1.0
    return x, y


@torch.no_grad()
def error(model, x, y):
    return (model(x, 0.0)[0].argmax(1) != y).float().mean().item()


def main(steps=600):
    torch.manual_seed(12)
    xs, ys = lab_data(3000, 0, 1, prior=[0.6, 0.3, 0.1])
    xt, yt = lab_data(3000, 1, 2, prior=[0.1, 0.3, 0.6])
    val = [torch.cat(t) for t in zip(lab_data(800, 0, 3, prior=[1.0, 1.0, 1.0]), lab_data(800, 1, 4, prior=[1.0, 1.0, 1.0]))]
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    origin = torch.cat([torch.zeros(64), torch.ones(64)])
    for step in range(steps):
        weight = 0.2 * min(1.0, step / 200)
        i, j = torch.randint(0, 3000, (64,)), torch.randint(0, 3000, (64,))
        label, lab = model(torch.cat([xs[i], xt[j]]), weight)
        task = F.cross_entropy(label, torch.cat([ys[i], yt[j]]))
        adversary = F.binary_cross_entropy_with_logits(lab, origin)
        optimizer.zero_grad()
        (task + adversary).backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"{step + 1} task {task.item():.3f} adversary {adversary.item():.3f} error {error(model, *val):.3f}")
    print("RESULT", error(model, *val))


if __name__ == "__main__":
    main()
