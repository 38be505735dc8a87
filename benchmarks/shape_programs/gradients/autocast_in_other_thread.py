# Small detector: one stem, the box and class towers run side by side in a thread pool.
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def tower(width, outputs):
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, outputs))


class Detector(nn.Module):
    def __init__(self, width=12, classes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU())
        self.towers = nn.ModuleDict({"box": tower(width, 2), "kind": tower(width, classes)})
        self.pool = ThreadPoolExecutor(2)

    def run_tower(self, name, features):
        return self.towers[name](features)

    def forward(self, images):
        features = self.stem(images)
        jobs = {name: self.pool.submit(self.run_tower, name, features) for name in self.towers}
        return {name: job.result() for name, job in jobs.items()}


def scenes(n, gen):
    images = 0.1 * torch.randn(n, 1, 16, 16, generator=gen)
    centre = torch.randint(2, 14, (n, 2), generator=gen)
    kind = torch.randint(0, 3, (n,), generator=gen)
    for k in range(n):
        r, c = centre[k].tolist()
        images[k, 0, r - 1:r + 2, c - 1:c + 2] += float(kind[k]) - 1.5 if kind[k] else 1.5
    return images, centre.float() / 8 - 1, kind


def score(out, centre, kind):
    return nn.functional.mse_loss(out["box"].float(), centre) + nn.functional.cross_entropy(out["kind"].float(), kind)


gen = torch.Generator().manual_seed(3)
model = Detector()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(100):
    images, centre, kind = scenes(32, gen)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(images)
    loss = score(out, centre, kind)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
images, centre, kind = scenes(200, gen)
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    print("RESULT", score(model(images), centre, kind).item())
