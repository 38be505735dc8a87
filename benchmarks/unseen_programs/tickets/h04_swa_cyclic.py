"""Average weights along a cyclic schedule (SWA) and report error of the averaged network."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(21)


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    logits = torch.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3].abs(), torch.sin(2 * x[:, 4]),
                          0.5 * x[:, 5] + 0.3 * x[:, 0]], 1)
    y = (3 * logits + 0.3 * torch.randn(n, 4, generator=g)).argmax(1)
    return TensorDataset(x * torch.linspace(0.5, 4, 12), y)


class Net(nn.Module):
    def __init__(self, h=96):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, h), nn.BatchNorm1d(h),
                                  nn.ReLU(), nn.Linear(h, h), nn.BatchNorm1d(h), nn.ReLU())
        self.head = nn.Linear(h, 4)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def error(model, loader):
    model.eval()
    wrong = sum((model(x).argmax(1) != y).sum().item() for x, y in loader)
    model.train()
    return wrong / len(loader.dataset)


def main(epochs=16, swa_start=8):
    train = DataLoader(make(1600, 0), 64, shuffle=True, drop_last=True)
    val = DataLoader(make(800, 1), 400)
    model = Net()
    swa_model = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    swa_scheduler = SWALR(optimizer, swa_lr=0.15, anneal_epochs=2)
    for epoch in range(epochs):
        total = 0.0
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch >= swa_start:
            swa_model.update_parameters(model)
            swa_scheduler.step()
        else:
            scheduler.step()
        if epoch % 3 == 2:
            print(f"epoch {epoch} loss {total / len(train):.4f} "
                  f"lr {optimizer.param_groups[0]['lr']:.3f} val_error {error(model, val):.4f}")
    update_bn(train, swa_model)
    print(f"last iterate {error(model, val):.4f}")
    print("RESULT", error(swa_model, val))


if __name__ == "__main__":
    main()
