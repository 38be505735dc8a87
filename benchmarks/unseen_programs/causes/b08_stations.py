"""Seismic array: correct the surveyed station places (UTM, metres) and a delay model from travel times."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(31)

N_STATIONS, N_SHOTS, SPEED = 12, 600, 1500.0
ORIGIN = torch.tensor([512_300.0, 5_403_700.0], dtype=torch.float64)


def survey():
    true = ORIGIN + 400 * torch.rand(N_STATIONS, 2, dtype=torch.float64)
    measured = true + 3.0 * torch.randn(N_STATIONS, 2, dtype=torch.float64)
    shots = ORIGIN + 800 * torch.rand(N_SHOTS, 2, dtype=torch.float64) - 200
    temp = torch.rand(N_SHOTS)
    dist = (shots[:, None] - true[None]).norm(dim=-1)
    time = dist / SPEED + 0.004 * torch.sin(3 * temp)[:, None].double()
    return true, measured, shots, temp, time.float() + 1e-5 * torch.randn(N_SHOTS, N_STATIONS)


class ArrayModel(nn.Module):
    def __init__(self, measured):
        super().__init__()
        self.place = nn.Parameter(measured.float())
        self.delay = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.speed = SPEED

    def forward(self, shots, temp):
        dist = (shots[:, None] - self.place[None]).norm(dim=-1)
        return dist.float() / self.speed + 0.01 * self.delay(temp[:, None])


def position_error(model, true):
    with torch.no_grad():
        return (model.place.double() - true).pow(2).sum(-1).mean().sqrt().item()


def main():
    true, measured, shots, temp, time = survey()
    model = ArrayModel(measured)
    opt = torch.optim.Adam([
        {"params": [model.place], "lr": 0.05},
        {"params": model.delay.parameters(), "lr": 5e-3},
    ])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1200, eta_min=1e-4)
    print(f"start: {position_error(model, true):.3f} m")
    for step in range(1200):
        idx = torch.randint(0, N_SHOTS, (64,))
        residual = (model(shots[idx], temp[idx]) - time[idx]) * 1e3
        loss = residual.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 200 == 0:
            print(f"step {step:4d}  loss {loss.item():.5f} ms^2")
    print("RESULT", position_error(model, true))


main()
