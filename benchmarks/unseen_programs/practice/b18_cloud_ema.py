"""Classify cloud types from small radiance patches and keep an average of the weights."""
import torch
torch.set_num_threads(1)
torch.manual_seed(140)
import copy
from torch import nn
import torch.nn.functional as F

KINDS, SIZE = 6, 12


def patches(n, seed):
    g = torch.Generator().manual_seed(77)
    spectrum = torch.randn(KINDS, 5, 5, generator=g)
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (n,), generator=g)
    field = torch.randn(n, 1, SIZE + 4, SIZE + 4, generator=g)
    kernels = spectrum[kind].unsqueeze(1)
    img = F.conv2d(field.transpose(0, 1), kernels, groups=n).transpose(0, 1)
    return img / 5 + 0.7 * torch.randn(n, 1, SIZE, SIZE, generator=g), kind


class CloudNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 5), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU())
        self.head = nn.Linear(24, KINDS)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class WeightAverage:
    """Running average of a model's parameters, stored compactly."""

    def __init__(self, model, decay, dtype=torch.bfloat16):
        self.decay = decay
        self.values = {k: p.detach().to(dtype).clone() for k, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for k, p in model.named_parameters():
            self.values[k].lerp_(p.to(self.values[k].dtype), 1 - self.decay)

    def copy_into(self, model):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for k, p in twin.named_parameters():
                p.copy_(self.values[k])
        return twin


def val_loss(model, data):
    with torch.no_grad():
        return F.cross_entropy(model(data[0]), data[1]).item()


train, val = patches(3000, 1), patches(800, 2)
model = CloudNet()
average = WeightAverage(model, decay=0.995)
opt = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True)
for step in range(380):
    rows = torch.randint(len(train[1]), (48,))
    loss = F.cross_entropy(model(train[0][rows]), train[1][rows], label_smoothing=0.05)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    average.update(model)
    if step % 95 == 94:
        print(f"step {step + 1} raw {val_loss(model, val):.4f} "
              f"averaged {val_loss(average.copy_into(model), val):.4f}")

print("RESULT", val_loss(average.copy_into(model), val))
