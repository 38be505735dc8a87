"""Regresses panel ratings of wines on lab measurements, with callbacks around the loop."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(101)


class Callback:
    def on_batch_end(self, loop):
        pass

    def on_epoch_end(self, loop):
        pass


class Schedule(Callback):
    """Exponential decay of the learning rate."""

    def __init__(self, optimizer, gamma):
        self.sched = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=gamma)

    def on_batch_end(self, loop):
        self.sched.step()


class Ema(Callback):
    def __init__(self, net, decay=0.9):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in net.state_dict().items()}

    def on_batch_end(self, loop):
        for k, v in loop.net.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)


class Report(Callback):
    def on_epoch_end(self, loop):
        if loop.epoch % 3 == 2:
            print(f"epoch {loop.epoch + 1} train {loop.train_loss:.4f} val {loop.validate():.4f}")


class Loop:
    def __init__(self, net, optimizer, loaders, callbacks):
        self.net, self.optimizer = net, optimizer
        self.train_loader, self.val_loader = loaders
        self.callbacks = callbacks
        self.loss = nn.SmoothL1Loss()

    def emit(self, event):
        for c in self.callbacks:
            getattr(c, event)(self)

    def fit(self, epochs):
        for self.epoch in range(epochs):
            self.net.train()
            total = 0.0
            for x, y in self.train_loader:
                loss = self.loss(self.net(x).squeeze(-1), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.item()
                self.emit("on_batch_end")
            self.train_loss = total / len(self.train_loader)
            self.emit("on_epoch_end")

    @torch.no_grad()
    def validate(self):
        self.net.eval()
        err = [(self.net(x).squeeze(-1) - y).pow(2) for x, y in self.val_loader]
        return torch.cat(err).mean().item()


def wines(n, gen):
    x = torch.randn(n, 11, generator=gen)
    quality = 5.6 + 1.1 * torch.tanh(x[:, 0] + 0.5 * x[:, 1]) - 0.7 * x[:, 2].abs()
    quality = quality + 0.4 * x[:, 3] * x[:, 4]
    return TensorDataset(x, quality + 0.2 * torch.randn(n, generator=gen))


def main():
    gen = torch.Generator().manual_seed(15)
    loaders = (DataLoader(wines(1600, gen), batch_size=64, shuffle=True),
               DataLoader(wines(400, gen), batch_size=200))
    net = nn.Sequential(nn.Linear(11, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                        nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)
    ema = Ema(net)
    loop = Loop(net, optimizer, loaders, [Schedule(optimizer, 0.85), ema, Report()])
    loop.fit(15)
    net.load_state_dict(ema.shadow)
    print("RESULT", loop.validate())


main()
