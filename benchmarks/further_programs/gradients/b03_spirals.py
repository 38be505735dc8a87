import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(5)

BACKBONE_GRAD = 0.5


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    r = torch.rand(n, generator=g) * 2 + 0.1
    a = r * 2.5 + y * 2.0944 + 0.15 * torch.randn(n, generator=g)
    return torch.stack([r * a.cos(), r * a.sin()], 1), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(),
            nn.Linear(64, 64), nn.Tanh(),
        )
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.loss_fn = nn.CrossEntropyLoss()

    def damp_backbone(self):
        for p in self.model.backbone.parameters():
            p.register_hook(lambda g: g * BACKBONE_GRAD)

    def train_epoch(self, loader):
        self.model.train()
        self.damp_backbone()
        total = 0.0
        for x, y in loader:
            self.opt.zero_grad()
            loss = self.loss_fn(self.model(x), y)
            loss.backward()
            self.opt.step()
            total += loss.item() * len(x)
        return total / len(loader.dataset)

    @torch.no_grad()
    def validate(self, x, y):
        self.model.eval()
        return self.loss_fn(self.model(x), y).item()


x, y = spirals(768, 1)
vx, vy = spirals(512, 2)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
trainer = Trainer(Net(), lr=0.1)
for epoch in range(30):
    train_loss = trainer.train_epoch(loader)
    if epoch % 5 == 4:
        print(epoch + 1, round(train_loss, 4), round(trainer.validate(vx, vy), 4))
print("RESULT", trainer.validate(vx, vy))
