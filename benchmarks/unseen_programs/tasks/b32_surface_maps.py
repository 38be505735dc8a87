"""Compresses maps of surface roughness with a convolutional autoencoder."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(173)

OPTIMIZER = {"name": "RMSprop", "lr": 2e-3, "alpha": 0.9, "momentum": 0.5, "eps": 1.0}
TRAIN = {"epochs": 8, "batch": 40, "decay": 0.94}


def surfaces(n, seed, side=24):
    """Heights in units of the nominal roughness."""
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    basis = F.interpolate(basis, size=side, mode="bicubic", align_corners=False).squeeze(1)
    weight = torch.randn(n, 6, generator=g)
    height = torch.einsum("nk,kij->nij", weight, basis) / 6 ** 0.5
    return (height + 0.05 * torch.randn(n, side, side, generator=g)).unsqueeze(1)


class Encoder(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.a = nn.Conv2d(1, 12, 4, stride=2, padding=1)
        self.b = nn.Conv2d(12, 24, 4, stride=2, padding=1)
        self.c = nn.Linear(24 * 36, code)

    def forward(self, x):
        return self.c(F.elu(self.b(F.elu(self.a(x)))).flatten(1))


class Decoder(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.c = nn.Linear(code, 24 * 36)
        self.b = nn.ConvTranspose2d(24, 12, 4, stride=2, padding=1)
        self.a = nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1)

    def forward(self, z):
        h = F.elu(self.c(z)).view(-1, 24, 6, 6)
        return self.a(F.elu(self.b(h)))


class AutoEncoder(nn.Module):
    def __init__(self, code=8):
        super().__init__()
        self.encoder, self.decoder = Encoder(code), Decoder(code)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def build_optimizer(model, options):
    options = dict(options)
    kind = getattr(torch.optim, options.pop("name"))
    return kind(model.parameters(), **options)


@torch.no_grad()
def unexplained(model, maps):
    """Part of the variance that the reconstruction leaves."""
    model.eval()
    part = (model(maps) - maps).pow(2).mean() / maps.pow(2).mean()
    model.train()
    return part.item()


def train():
    maps, held_out = surfaces(800, 1), surfaces(200, 2)
    model = AutoEncoder()
    opt = build_optimizer(model, OPTIMIZER)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, TRAIN["decay"])
    for epoch in range(TRAIN["epochs"]):
        for pick in torch.randperm(len(maps)).split(TRAIN["batch"]):
            loss = F.mse_loss(model(maps[pick]), maps[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        print(f"epoch {epoch} loss {loss.item():.4f} left {unexplained(model, held_out):.4f}")
    return unexplained(model, held_out)


print("RESULT", train())
