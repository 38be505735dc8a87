"""Tail-averaged regression network for a tabular price model."""
import copy
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)
gen = torch.Generator().manual_seed(17)

x = torch.randn(1200, 10, generator=gen)
price = 4.0 + x[:, 0] * 1.5 - x[:, 3].abs() + torch.sin(2 * x[:, 5]) + 0.3 * torch.randn(1200, generator=gen)
train_x, train_y, test_x, test_y = x[:900], price[:900], x[900:], price[900:]


class TailAverage:
    """Mean of the snapshots that are taken in the second half of the run."""

    def __init__(self, net, total_steps, every):
        self.start, self.every = total_steps // 2, every
        self.weight = every / total_steps
        self.sums = {k: torch.zeros_like(v) for k, v in net.state_dict().items()}

    @torch.no_grad()
    def after_step(self, step, net):
        if step >= self.start and step % self.every == 0:
            for name, value in net.named_parameters():
                self.sums[name].add_(value, alpha=self.weight)

    def export(self, net):
        out = copy.deepcopy(net)
        out.load_state_dict(self.sums)
        return out.eval()


def main(steps=120, every=4):
    net = nn.Sequential(nn.Linear(10, 48), nn.GELU(), nn.Linear(48, 24), nn.GELU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    tail = TailAverage(net, steps, every)
    for step in range(steps):
        rows = torch.randint(0, 900, (64,), generator=gen)
        loss = nn.functional.mse_loss(net(train_x[rows]).squeeze(1), train_y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        tail.after_step(step, net)
        if step % 30 == 0:
            print(step, round(loss.item(), 4))
    final = tail.export(net)
    with torch.no_grad():
        return nn.functional.mse_loss(final(test_x).squeeze(1), test_y).item()


if __name__ == "__main__":
    print("RESULT", main())
