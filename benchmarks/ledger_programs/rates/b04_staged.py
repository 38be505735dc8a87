import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
torch.set_num_threads(1)


class Classifier(nn.Module):
    def __init__(self, n=5):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(30, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
        self.head = nn.Linear(48, n)

    def forward(self, x):
        return self.head(self.backbone(x))


means = torch.randn(5, 30) * 0.45


def data(n, flip):
    y = torch.randint(0, 5, (n,))
    x = means[y] + torch.randn(n, 30)
    noisy = torch.where(torch.rand(n) < flip, torch.randint(0, 5, (n,)), y)
    return x, noisy


class Trainer:
    def __init__(self, model, epochs, unfreeze_at):
        self.model = model
        self.epochs = epochs
        self.unfreeze_at = unfreeze_at
        for p in model.backbone.parameters():
            p.requires_grad = False
        self.optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=epochs)
        self.x, self.y = data(900, 0.25)
        self.xv, self.yv = data(800, 0.0)

    def unfreeze(self):
        for p in self.model.backbone.parameters():
            p.requires_grad = True
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def train(self):
        for epoch in range(self.epochs):
            if epoch == self.unfreeze_at:
                self.unfreeze()
            self.model.train()
            for i in torch.randperm(len(self.x)).split(30):
                loss = F.cross_entropy(self.model(self.x[i]), self.y[i])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            if epoch % 4 == 0:
                print(f"epoch {epoch} lr {self.scheduler.get_last_lr()[0]:.4f} loss {loss.item():.3f} val {self.validate():.3f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        return F.cross_entropy(self.model(self.xv), self.yv).item()


t = Trainer(Classifier(), epochs=16, unfreeze_at=3)
t.train()
print(f"result: {t.validate():.4f}")
