import torch
from torch import nn
import torch.nn.functional as F


class Spirals:
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        r = torch.rand(n, generator=g) * 2 + 0.3
        self.y = torch.randint(0, 2, (n,), generator=g)
        a = r * 3 + self.y * torch.pi
        self.x = torch.stack([r * a.cos(), r * a.sin()], 1) + 0.05 * torch.randn(n, 2, generator=g)

    def __iter__(self):
        perm = torch.randperm(len(self.x))
        for i in perm.split(64):
            yield self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Trainer:
    def __init__(self, model, lr_head=1e-2, lr_body=5e-3, clip=1.0):
        self.model = model
        self.clip = clip
        self.optimizers = [
            torch.optim.Adam(model.head.parameters(), lr=lr_head),
            torch.optim.Adam(model.body.parameters(), lr=lr_body),
        ]

    def apply(self, opt):
        for g in opt.param_groups:
            nn.utils.clip_grad_norm_(g["params"], self.clip)
        opt.step()
        self.model.zero_grad(set_to_none=True)

    def training_step(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        for opt in self.optimizers:
            self.apply(opt)
        return loss.item()

    @torch.no_grad()
    def validate(self, data):
        return F.cross_entropy(self.model(data.x), data.y).item()

    def fit(self, train, val, epochs):
        for ep in range(epochs):
            losses = [self.training_step(x, y) for x, y in train]
            if ep % 10 == 0:
                print(ep, sum(losses) / len(losses), self.validate(val))
        return self.validate(val)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("result:", Trainer(Net()).fit(Spirals(640, 0), Spirals(400, 1), epochs=40))
