import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfDistiller(nn.Module):
    def __init__(self, net, decay=0.98):
        super().__init__()
        self.student = net
        self.teacher = copy.deepcopy(net).requires_grad_(False)
        self.decay = decay

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    @torch.no_grad()
    def update(self):
        for t, s in zip(self.teacher.state_dict().values(), self.student.state_dict().values()):
            if t.dtype.is_floating_point:
                t.lerp_(s, 1 - self.decay)
            else:
                t.copy_(s)

    def forward(self, x, y, u, weight):
        n = len(x)
        s = self.student(torch.cat([x, u + 0.2 * torch.randn_like(u)]))
        with torch.no_grad():
            t = self.teacher(u).softmax(-1)
        return F.cross_entropy(s[:n], y) + weight * F.mse_loss(s[n:].softmax(-1), t)


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    w = torch.randn(20, 2)

    def points(n):
        x = torch.randn(n, 20)
        return x, (x @ w + torch.randn(n, 2)).argmax(-1)

    net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.4),
                        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 2))
    algo = SelfDistiller(net)
    opt = torch.optim.Adam(algo.student.parameters(), lr=3e-3)
    (lx, ly), (ux, _), (vx, vy) = points(200), points(2000), points(1500)
    algo.train()
    for step in range(400):
        i, j = torch.randint(0, 200, (32,)), torch.randint(0, 2000, (64,))
        loss = algo(lx[i], ly[i], ux[j], min(1.0, step / 150))
        opt.zero_grad()
        loss.backward()
        opt.step()
        algo.update()
        if step % 100 == 0:
            with torch.no_grad():
                print(step, loss.item(), F.cross_entropy(algo.teacher(vx), vy).item())
    with torch.no_grad():
        print("result:", F.cross_entropy(algo.teacher(vx), vy).item())


main()
