"""Small-sample regression with early stopping; the best weights are archived as numpy arrays."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(32)
x = torch.randn(400, 20)
y = x[:, 0] - 0.5 * x[:, 1] + 0.8 * torch.randn(400)
train, valid, test = slice(0, 60), slice(60, 200), slice(200, 400)


def mse(net, part):
    return nn.functional.mse_loss(net(x[part]).squeeze(1), y[part])


class Archive:
    def __init__(self):
        self.score, self.arrays = float("inf"), None

    def offer(self, net, score):
        if score < self.score:
            self.score = score
            self.arrays = {k: v.detach().cpu().numpy() for k, v in net.state_dict().items()}

    def restore(self, net):
        net.load_state_dict({k: torch.from_numpy(a) for k, a in self.arrays.items()})


def run():
    net = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    archive = Archive()
    for epoch in range(120):
        net.train()
        opt.zero_grad()
        loss = mse(net, train)
        loss.backward()
        opt.step()
        net.eval()
        with torch.no_grad():
            archive.offer(net, mse(net, valid).item())
        if epoch % 30 == 0:
            print(epoch, round(loss.item(), 4), "best", round(archive.score, 4))
    archive.restore(net)
    with torch.no_grad():
        return mse(net, test).item()


print("RESULT", run())
