import torch
import torch.nn as nn
from timm.scheduler.cosine_lr import CosineLRScheduler
from timm.utils import AverageMeter, accuracy

torch.manual_seed(81)
torch.set_num_threads(1)


def make_images(n):
    y = torch.randint(0, 3, (n,))
    x = 0.6 * torch.randn(n, 3, 12, 12)
    for c in range(3):
        x[y == c, c, 2 + 2 * c:7 + 2 * c, 3:9] += 0.8
    return x, y


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU(inplace=True),
            nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def train_one_epoch(epoch, model, x, y, optimizer, loss_fn, lr_scheduler, batch_size=32):
    model.train()
    losses = AverageMeter()
    order = torch.randperm(len(x)).split(batch_size)
    num_updates = epoch * len(order)
    for idx in order:
        loss = loss_fn(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_updates += 1
        losses.update(loss.item(), len(idx))
        lr_scheduler.step_update(num_updates=num_updates, metric=losses.avg)
    return losses.avg


def validate(model, x, y, loss_fn):
    model.eval()
    with torch.no_grad():
        out = model(x)
    return loss_fn(out, y).item(), accuracy(out, y)[0].item()


def main():
    epochs = 10
    x, y = make_images(480)
    xv, yv = make_images(300)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.02)
    lr_scheduler = CosineLRScheduler(optimizer, t_initial=epochs, lr_min=1e-5, warmup_t=2, warmup_lr_init=5e-5)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.0)
    for epoch in range(epochs):
        tr = train_one_epoch(epoch, model, x, y, optimizer, loss_fn, lr_scheduler)
        vl, acc = validate(model, xv, yv, loss_fn)
        print(f"Train: {epoch} loss {tr:.4f}  Test: loss {vl:.4f} acc@1 {acc:.2f}")
    print(f"result: {vl:.4f}")


if __name__ == "__main__":
    main()
