"""Self-supervised BYOL pretraining on vectors, then a linear probe; report probe error."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)
CLASSES, DIM = 8, 40
PROTO = torch.randn(CLASSES, DIM)
STYLE = torch.randn(10, DIM)


def images(n, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    return PROTO[y] + 0.5 * torch.randn(n, DIM, generator=gen), y


def augment(x):
    x = x * (torch.rand_like(x) > 0.2)
    return x + 0.6 * torch.randn(len(x), 10) @ STYLE + 0.1 * torch.randn_like(x)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(mlp(DIM, 96, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.projector = mlp(64, 64, 32)

    def forward(self, x):
        return self.projector(self.backbone(x))


class BYOL(nn.Module):
    def __init__(self, tau=0.97):
        super().__init__()
        self.online = Encoder()
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad_(False)
        self.predictor = mlp(32, 64, 32)
        self.tau = tau

    def loss(self, a, b):
        p1, p2 = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            z1, z2 = self.target(a), self.target(b)
        return (2 - F.cosine_similarity(p1, z2) - F.cosine_similarity(p2, z1)).mean()

    @torch.no_grad()
    def update_target(self):
        for q, k in zip(self.online.parameters(), self.target.parameters()):
            k.mul_(self.tau).add_(q, alpha=1 - self.tau)


def linear_probe(backbone, train, test):
    backbone.eval()
    for p in backbone.parameters():
        p.requires_grad_(False)
    head = nn.Linear(64, CLASSES)
    opt = torch.optim.SGD(head.parameters(), lr=0.5, momentum=0.9)
    feats = backbone(train[0])
    for _ in range(80):
        loss = F.cross_entropy(head(feats), train[1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (head(backbone(test[0])).argmax(1) != test[1]).float().mean().item()


def main():
    gen = torch.Generator().manual_seed(2)
    train, test = images(1200, gen), images(400, gen)
    model = BYOL()
    params = list(model.online.parameters()) + list(model.predictor.parameters())
    opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=1e-3)
    for step in range(1, 181):
        x = train[0][torch.randint(0, 1200, (128,))]
        loss = model.loss(augment(x), augment(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        model.update_target()
        if step % 30 == 0:
            with torch.no_grad():
                spread = F.normalize(model.online(x), dim=1).std(0).mean()
            print(f"step {step} loss {loss.item():.4f} feature_std {spread:.4f}")
    print("RESULT", linear_probe(model.online.backbone, train, test))


if __name__ == "__main__":
    main()
