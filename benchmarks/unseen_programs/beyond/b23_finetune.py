"""Pre-trains a convolutional encoder on many textures and fine-tunes it on few samples."""
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(71)

SIDE = 16


def textures(n, seed, classes, shift):
    """Waves of several directions and lengths with noise; the class sets both."""
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (n,), generator=gen)
    angle = (label + shift).float() * 0.37
    pitch = 0.8 + 0.25 * ((label + shift) % 4)
    grid = torch.arange(SIDE).float()
    along = (angle.cos()[:, None, None] * grid[None, :, None]
             + angle.sin()[:, None, None] * grid[None, None, :])
    phase = 6.28 * torch.rand(n, 1, 1, generator=gen)
    image = torch.sin(along * pitch[:, None, None] + phase)
    return (image + 0.9 * torch.randn(n, SIDE, SIDE, generator=gen)).unsqueeze(1), label


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 24, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        return self.layers(x)


class Classifier(nn.Module):
    def __init__(self, classes, pretrained=None):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(32, classes)
        if pretrained is not None:
            self.encoder.load_state_dict(torch.load(pretrained))
        self.reset()

    def reset(self):
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, x):
        return self.head(self.encoder(x))


def fit(model, x, y, epochs, lr, head_lr, name):
    optimizer = torch.optim.Adam([
        {"params": model.encoder.parameters(), "lr": lr},
        {"params": model.head.parameters(), "lr": head_lr}])
    for epoch in range(epochs):
        for chunk in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(model(x[chunk]), y[chunk])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{name}: last loss {loss.item():.4f}")


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    return F.cross_entropy(model(x), y).item()


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "encoder.pt")
    source = Classifier(8)
    fit(source, *textures(3000, 1, 8, 0), epochs=8, lr=1e-3, head_lr=3e-3,
        name="pre-training")
    torch.save(source.encoder.state_dict(), path)
    model = Classifier(4, pretrained=path)
few_x, few_y = textures(40, 2, 4, 3)
fit(model, few_x, few_y, epochs=40, lr=3e-4, head_lr=1e-2, name="fine-tuning")
print("RESULT", round(validate(model, *textures(1000, 3, 4, 3)), 4))
