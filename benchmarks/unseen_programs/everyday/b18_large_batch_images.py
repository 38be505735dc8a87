"""Train a residual network on texture images with layer-wise adaptive rates."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1818)

CLASSES, SIZE = 6, 16


def textures(n):
    label = torch.randint(0, CLASSES, (n,))
    angle = label.float() * torch.pi / CLASSES + 0.1 * torch.randn(n)
    freq = 1.1 + 0.25 * torch.randn(n)
    phase = 6.3 * torch.rand(n)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    along = (torch.cos(angle)[:, None, None] * xx + torch.sin(angle)[:, None, None] * yy)
    image = torch.sin(freq[:, None, None] * along + phase[:, None, None])
    return (image + 0.8 * torch.randn(n, SIZE, SIZE)).unsqueeze(1), label


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.gain * self.conv2(F.relu(self.conv1(F.relu(x))))


class TextureNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(ResidualBlock(width), ResidualBlock(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        h = F.relu(self.blocks(self.stem(x)))
        return self.head(h.mean((2, 3)))


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, momentum=0.9, trust=0.02):
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad
                if p.ndim > 1:
                    ratio = group["trust"] * p.norm() / update.norm()
                    update = update * ratio
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(update)
                p.add_(buf, alpha=-group["lr"])


def evaluate(model, image, label):
    model.eval()
    with torch.no_grad():
        value = F.cross_entropy(model(image), label).item()
    model.train()
    return value


config = {"steps": 120, "batch": 128, "lr": 0.2, "warmup": 15}
image, label = textures(2500)
val_image, val_label = textures(400)
model = TextureNet()
optimizer = LARS(model.parameters(), lr=config["lr"])

for step in range(config["steps"]):
    scale = min(1.0, (step + 1) / config["warmup"]) * (1 - step / config["steps"])
    for group in optimizer.param_groups:
        group["lr"] = config["lr"] * scale
    idx = torch.randint(0, len(image), (config["batch"],))
    loss = F.cross_entropy(model(image[idx]), label[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        val = evaluate(model, val_image, val_label)
        print(f"step {step} loss {loss.item():.4f} val {val:.4f}")

print(f"RESULT {evaluate(model, val_image, val_label):.5f}")
