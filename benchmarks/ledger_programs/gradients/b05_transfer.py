"""Pre-train on a ten-way task, then fine-tune on a five-way one."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.stage = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(16 * 9, num_classes)

    def reset_classifier(self, num_classes):
        self.fc = nn.Linear(16 * 9, num_classes)

    def forward(self, x):
        return self.fc(self.stage(self.stem(x)).flatten(1))


def make_task(n, protos):
    y = torch.randint(0, len(protos), (n,))
    return protos[y].unsqueeze(1) + 0.9 * torch.randn(n, 1, 12, 12), y


def fit(model, optimizer, x, y, epochs, bs=64):
    model.train()
    for epoch in range(epochs):
        perm = torch.randperm(len(x))
        tot = 0.0
        for i in range(0, len(x), bs):
            j = perm[i:i + bs]
            loss = F.cross_entropy(model(x[j]), y[j])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tot += loss.item() * len(j)
        print(f"  epoch {epoch} loss {tot / len(x):.4f}")


def get_optimizer(model, lr):
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}], lr=lr)


source = torch.randn(10, 12, 12)
target = torch.randn(5, 12, 12) * 0.6

model = Net(10)
print("pretrain")
fit(model, get_optimizer(model, 2e-3), *make_task(1024, source), epochs=3)

print("finetune")
optimizer = get_optimizer(model, 1e-3)
model.reset_classifier(5)
fit(model, optimizer, *make_task(768, target), epochs=4)

model.eval()
xv, yv = make_task(500, target)
with torch.no_grad():
    print(f"result: {F.cross_entropy(model(xv), yv).item():.4f}")
