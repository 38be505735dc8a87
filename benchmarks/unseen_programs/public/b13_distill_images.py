"""Distils a large image classifier into a small one using softened class probabilities."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(27)

CLASSES = 10


def glyphs(n, prototypes, label_noise, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = prototypes[y] + 0.9 * torch.randn(n, 1, 12, 12, generator=gen)
    flip = torch.rand(n, generator=gen) < label_noise
    return x, torch.where(flip, torch.randint(0, CLASSES, (n,), generator=gen), y)


class LargeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.4), nn.Linear(48 * 9, CLASSES))

    def forward(self, x):
        return self.net(x)


class SmallModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8),
                                  nn.ReLU())
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 64), nn.ReLU(),
                                nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.fc(self.conv(x))


class Configs:
    temperature = 3.0
    soft_targets_weight = 20.0
    label_loss_weight = 0.5
    epochs = 14
    batch_size = 32

    def __init__(self, large, model, train_set, valid_set):
        self.large, self.model = large, model
        self.train_set, self.valid_set = train_set, valid_set
        self.kl_div_loss = nn.KLDivLoss(log_target=True, reduction="batchmean")
        self.loss_func = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.tracker = {}

    def step(self, data, target):
        self.model.train()
        self.large.eval()
        with torch.no_grad():
            large_logits = self.large(data)
        output = self.model(data)
        soft_targets = F.log_softmax(large_logits / self.temperature, dim=-1)
        soft_prob = F.log_softmax(large_logits / self.temperature, dim=-1)
        soft_targets_loss = self.kl_div_loss(soft_prob, soft_targets)
        label_loss = self.loss_func(output, target)
        loss = self.soft_targets_weight * soft_targets_loss + self.label_loss_weight * label_loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.tracker = {"loss.kl_div": soft_targets_loss.item(), "loss.nll": label_loss.item(),
                        "accuracy.train": (output.argmax(1) == target).float().mean().item()}

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.valid_set
        return F.cross_entropy(self.model(x), y).item()

    def run(self):
        x, y = self.train_set
        for epoch in range(self.epochs):
            for idx in torch.randperm(len(x)).split(self.batch_size):
                self.step(x[idx], y[idx])
            loss = self.validate()
            if epoch % 2 == 1:
                line = "  ".join(f"{k}: {v:.4f}" for k, v in self.tracker.items())
                print(f"{epoch:3d}  {line}  loss.valid: {loss:.4f}")
        return loss


def pretrain_large(train_set):
    large = LargeModel()
    x, y = train_set
    optimizer = torch.optim.AdamW(large.parameters(), lr=2e-3, weight_decay=5e-2)
    for _ in range(4):
        for idx in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(large(x[idx]), y[idx], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return large.requires_grad_(False)


generator = torch.Generator().manual_seed(2)
prototypes = F.interpolate(torch.randn(CLASSES, 1, 6, 6, generator=generator), scale_factor=2)
big_train = glyphs(3000, prototypes, 0.0, generator)
small_train = glyphs(600, prototypes, 0.35, generator)
valid = glyphs(600, prototypes, 0.0, generator)
result = Configs(pretrain_large(big_train), SmallModel(), small_train, valid).run()
print("RESULT", round(result, 5))
