"""Learn the one-step dynamics of a driven pendulum with accelerate and small micro-batches."""
import torch

torch.set_num_threads(1)
torch.manual_seed(5)

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {"micro_batch": 16, "accumulation": 8, "epochs": 6, "lr": 0.2, "momentum": 0.9}


def transitions(n, seed, dt=0.1, substeps=5):
    """States (angle, speed) and torque; the target is the scaled change of state."""
    g = torch.Generator().manual_seed(seed)
    angle = (torch.rand(n, generator=g) * 2 - 1) * torch.pi
    speed = 2 * torch.randn(n, generator=g)
    torque = torch.rand(n, generator=g) * 2 - 1
    a, s = angle.clone(), speed.clone()
    for _ in range(substeps):
        s = s + dt / substeps * (-9.8 * a.sin() - 0.1 * s + 3 * torque)
        a = a + dt / substeps * s
    x = torch.stack([angle.sin(), angle.cos(), speed / 2, torque], dim=1)
    y = torch.stack([(a - angle) * 4, (s - speed)], dim=1)
    return TensorDataset(x, y + 0.02 * torch.randn(n, 2, generator=g))


class Dynamics(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 2),
        )

    def forward(self, x):
        return self.net(x)


def evaluate(accelerator, model, loader):
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            pred, target = accelerator.gather_for_metrics((model(x), y))
            total += (pred - target).pow(2).mean(dim=1).sum().item()
            count += len(target)
    model.train()
    return total / count


def main():
    accelerator = Accelerator(gradient_accumulation_steps=CONFIG["accumulation"], cpu=True)
    model = Dynamics()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=CONFIG["lr"], momentum=CONFIG["momentum"]
    )
    train = DataLoader(transitions(4096, 1), batch_size=CONFIG["micro_batch"], shuffle=True)
    valid = DataLoader(transitions(1000, 2), batch_size=250)
    updates = CONFIG["epochs"] * len(train) // CONFIG["accumulation"]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    model, optimizer, train, valid, schedule = accelerator.prepare(
        model, optimizer, train, valid, schedule
    )

    for epoch in range(CONFIG["epochs"]):
        running = 0.0
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                running += loss.item()
                loss = loss / accelerator.gradient_accumulation_steps
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.print(
            f"epoch {epoch} train {running / len(train):.4f} "
            f"valid {evaluate(accelerator, model, valid):.4f} lr {schedule.get_last_lr()[0]:.4f}"
        )
    print(f"RESULT {evaluate(accelerator, model, valid):.5f}")


if __name__ == "__main__":
    main()
