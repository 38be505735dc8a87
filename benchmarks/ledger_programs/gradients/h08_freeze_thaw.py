import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(40, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.aux = nn.Linear(64, 40)
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        h = self.backbone(x)
        return self.head(h), self.aux(h)


def task(n, protos):
    y = torch.randint(0, len(protos), (n,))
    return protos[y] + 0.8 * torch.randn(n, 40), y


protos_a, protos_b = torch.randn(8, 40), torch.randn(5, 40) * 0.6
model = Net(8)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
x, y = task(1024, protos_a)
for _ in range(3):
    for i in torch.randperm(len(x)).split(64):
        logits, rec = model(x[i])
        opt.zero_grad()
        (F.cross_entropy(logits, y[i]) + 0.1 * F.mse_loss(rec, x[i])).backward()
        opt.step()

model.head = nn.Linear(64, 5)
for p in model.backbone.parameters():
    p.requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
x, y = task(640, protos_b)
for epoch in range(8):
    if epoch == 4:
        for p in model.backbone.parameters():
            p.requires_grad_(True)
        for g in opt.param_groups:
            g["lr"] = 5e-4
    model.train()
    model.backbone.train(epoch >= 4)
    for i in torch.randperm(len(x)).split(64):
        logits, _ = model(x[i])
        loss = F.cross_entropy(logits, y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

model.eval()
xv, yv = task(600, protos_b)
with torch.no_grad():
    print(f"result: {F.cross_entropy(model(xv)[0], yv).item():.4f}")
