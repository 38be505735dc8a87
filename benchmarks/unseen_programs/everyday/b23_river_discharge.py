"""Predict river discharge from rainfall sequences with a recurrent network."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(2323)

DAYS, BASINS = 24, 6


def catchments(n):
    """Rain with rare cloudbursts runs through two linear reservoirs."""
    rain = torch.distributions.Gamma(0.4, 0.8).sample((n, DAYS))
    burst = (torch.rand(n, DAYS) < 0.02).float()
    rain = rain + burst * 15 * torch.rand(n, DAYS)
    basin = torch.randint(0, BASINS, (n,))
    fast = (0.35 + 0.08 * basin.float() / BASINS)
    quick = slow = torch.zeros(n)
    for day in range(DAYS):
        quick = (1 - fast) * quick + 0.7 * rain[:, day]
        slow = 0.95 * slow + 0.3 * rain[:, day]
    discharge = fast * quick + 0.05 * slow
    return rain.unsqueeze(-1), basin, discharge


class RunoffRNN(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.basin = nn.Embedding(BASINS, 4)
        self.rnn = nn.RNN(5, hidden, num_layers=2, batch_first=True, nonlinearity="relu")
        self.out = nn.Linear(hidden, 1)
        for name, p in self.rnn.named_parameters():
            if "weight_hh" in name:
                nn.init.eye_(p)
                p.data.mul_(0.95)

    def forward(self, rain, basin):
        static = self.basin(basin).unsqueeze(1).expand(-1, DAYS, -1)
        h, _ = self.rnn(torch.cat([rain, static], dim=-1))
        return self.out(h[:, -1]).squeeze(-1)


class Hydrologist:
    def __init__(self, lr=0.01, clip=1.0):
        self.model = RunoffRNN()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.clip = clip
        self.norms = []

    def train_step(self, rain, basin, discharge):
        self.model.train()
        loss = (self.model(rain, basin) - discharge).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.norms.append(norm.item())
        return loss.item()

    @torch.no_grad()
    def skill_error(self, rain, basin, discharge):
        """One minus the Nash-Sutcliffe efficiency."""
        self.model.eval()
        residual = (self.model(rain, basin) - discharge).pow(2).mean()
        return (residual / discharge.var()).item()


def main():
    train, val = catchments(3000), catchments(600)
    hydro = Hydrologist()
    steps = 250
    decay = torch.optim.lr_scheduler.LinearLR(hydro.optimizer, 1.0, 0.05, total_iters=steps)
    for step in range(1, steps + 1):
        idx = torch.randint(0, 3000, (64,))
        loss = hydro.train_step(*(column[idx] for column in train))
        decay.step()
        if step % 50 == 0:
            norm = sum(hydro.norms[-50:]) / 50
            print(f"step {step} loss {loss:.4f} norm {norm:.2f} "
                  f"val {hydro.skill_error(*val):.4f}")
    print(f"RESULT {hydro.skill_error(*val):.5f}")


if __name__ == "__main__":
    main()
