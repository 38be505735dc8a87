import torch
from torch import nn
from torch.utils.data import DataLoader

torch.set_num_threads(1)
torch.manual_seed(21)

ACTIVITIES = 4


def recordings(n):
    """Accelerometer windows in milli-g: a step rhythm for each activity over gravity."""
    t = torch.arange(64) / 50
    rows = []
    for i in range(n):
        kind = i % ACTIVITIES
        rate = 1.0 + 1.2 * kind + 0.15 * torch.randn(1)
        wave = 180 * torch.sin(6.28 * rate * t + 6.28 * torch.rand(1))
        tilt = torch.tensor([[120.0], [-60.0], [980.0]]) + 40 * torch.randn(3, 1)
        rows.append((tilt + wave * torch.tensor([[1.0], [0.5], [0.8]]) + 60 * torch.randn(3, 64), kind))
    return rows


class Bundle:
    def __init__(self, rows):
        stack = torch.stack([w for w, _ in rows])
        self.middle = stack.mean((0, 2), keepdim=True)
        self.width = stack.std((0, 2), keepdim=True)

    def __call__(self, rows):
        windows = torch.stack([w for w, _ in rows])
        return (windows - self.middle) / self.width, torch.tensor([k for _, k in rows])


def network():
    return nn.Sequential(
        nn.Conv1d(3, 16, 7, padding=3), nn.ReLU(), nn.AvgPool1d(2),
        nn.Conv1d(16, 24, 7, padding=3), nn.ReLU(), nn.AdaptiveMaxPool1d(1),
        nn.Flatten(), nn.Linear(24, ACTIVITIES))


class Coach:
    def __init__(self, net, rows, held_out):
        self.net = net
        self.fit_loader = DataLoader(rows, 32, shuffle=True, collate_fn=Bundle(rows))
        self.check_loader = DataLoader(held_out, 64)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def epoch(self):
        self.net.train()
        for windows, kinds in self.fit_loader:
            loss = nn.functional.cross_entropy(self.net(windows), kinds)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.inference_mode()
    def check(self):
        self.net.eval()
        wrong = [self.net(w).argmax(1).ne(k).float() for w, k in self.check_loader]
        return torch.cat(wrong).mean().item()


coach = Coach(network(), recordings(320), recordings(160))
for epoch in range(10):
    print(f"epoch {epoch} loss {coach.epoch():.3f} error {coach.check():.3f}")
print("RESULT", coach.check())
