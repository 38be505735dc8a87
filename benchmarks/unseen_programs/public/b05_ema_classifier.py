"""Trains a convolutional classifier and reports the exponential moving average weights."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)


def textures(n, gen):
    """Six classes of oriented gratings under changing contrast and brightness."""
    y = torch.randint(0, 6, (n,), generator=gen)
    g = torch.linspace(0, 3.0, 20)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    ang = y.float() * 3.14159 / 6
    phase = 6.28 * torch.rand(n, generator=gen)
    arg = 4 * (ang.cos()[:, None, None] * xx + ang.sin()[:, None, None] * yy)
    img = torch.sin(arg + phase[:, None, None]) * (0.5 + torch.rand(n, 1, 1, generator=gen))
    img = img + 2.0 + torch.randn(n, 20, 20, generator=gen)
    return img.unsqueeze(1), y


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout),
                         nn.ReLU(inplace=True))


class Backbone(nn.Module):
    def __init__(self, num_classes=6):
        super().__init__()
        self.features = nn.Sequential(ConvBlock(1, 12, 1), ConvBlock(12, 24, 2),
                                      ConvBlock(24, 24, 2))
        self.head = nn.Linear(24, num_classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


class EMA:
    """Keeps an averaged copy of a model for evaluation."""

    def __init__(self, model, decay=0.97):
        self.decay = decay
        self.ema_model = copy.deepcopy(model).eval()
        for p in self.ema_model.parameters():
            p.requires_grad_(False)
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model):
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        for avg, cur in zip(self.ema_model.parameters(), model.parameters()):
            avg.mul_(decay).add_(cur, alpha=1 - decay)


class SupervisedLoop:
    def __init__(self, model, lr, total_steps):
        self.model = model
        self.ema = EMA(model)
        decay = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.SGD(
            [{"params": decay, "weight_decay": 5e-4}, {"params": plain, "weight_decay": 0.0}],
            lr=lr, momentum=0.9, nesterov=True)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, lr, total_steps)

    def training_step(self, x, y):
        self.model.train()
        loss = F.cross_entropy(self.model(x), y, label_smoothing=0.02)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update(self.model)
        return loss.item()

    @torch.no_grad()
    def validation(self, x, y):
        logits = self.ema.ema_model(x)
        return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


generator = torch.Generator().manual_seed(9)
x_train, y_train = textures(1200, generator)
x_val, y_val = textures(400, generator)
epochs, batch = 6, 40
loop = SupervisedLoop(Backbone(), lr=0.1, total_steps=epochs * len(x_train) // batch)
for epoch in range(epochs):
    running = 0.0
    batches = torch.randperm(len(x_train)).split(batch)
    for idx in batches:
        running += loop.training_step(x_train[idx], y_train[idx])
    val_loss, val_acc = loop.validation(x_val, y_val)
    print(f"epoch {epoch} train/loss {running / len(batches):.4f} "
          f"ema/val_loss {val_loss:.4f} ema/val_acc {val_acc:.3f}")
print("RESULT", round(val_loss, 5))
