import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(21)
torch.set_num_threads(1)

DIM = 16
PENALTY = 0.003
STEPS = 400


def rings(n, gen):
    label = torch.randint(0, 3, (n,), generator=gen)
    direction = F.normalize(torch.randn(n, DIM, generator=gen), dim=1)
    radius = 1.0 + label.float() + 0.2 * torch.randn(n, generator=gen)
    return direction * radius[:, None], label


def network():
    return nn.Sequential(
        nn.Linear(DIM, 48), nn.Softplus(),
        nn.Linear(48, 48), nn.Softplus(),
        nn.Linear(48, 3),
    )


class SmoothTrainer:
    """Cross entropy plus a double-backprop smoothness term."""

    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=5e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=500)

    def smoothness(self, loss, x):
        (slope,) = torch.autograd.grad(self.scaler.scale(loss), x, create_graph=True)
        slope = slope.float() * len(x)
        return slope.pow(2).sum(dim=1).mean()

    def step(self, x, y):
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.float16):
            logits = self.net(x)
            loss = F.cross_entropy(logits.float(), y)
        penalty = self.smoothness(loss, x)
        total = loss + PENALTY * penalty
        self.opt.zero_grad()
        self.scaler.scale(total).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


@torch.no_grad()
def evaluate(net, x, y):
    return F.cross_entropy(net(x), y).item()


def main():
    gen = torch.Generator().manual_seed(3)
    train_x, train_y = rings(3000, gen)
    val_x, val_y = rings(800, gen)
    trainer = SmoothTrainer(network())
    for step in range(STEPS):
        pick = torch.randint(0, len(train_x), (64,), generator=gen)
        loss = trainer.step(train_x[pick], train_y[pick])
        if step % 50 == 0:
            print(f"{step:4d}  train {loss:.4f}  val {evaluate(trainer.net, val_x, val_y):.4f}")
    print("RESULT", evaluate(trainer.net, val_x, val_y))


main()
