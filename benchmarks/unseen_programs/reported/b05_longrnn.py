# Recurrent regression on long sequences: integrate a masked signal.
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(17)

SEQ, HID, BATCH, STEPS = 30, 32, 40, 420
MAX_NORM = 1.0


class Elman(nn.Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.inp = nn.Linear(n_in, n_hid)
        self.rec = nn.Linear(n_hid, n_hid, bias=False)
        self.out = nn.Linear(n_hid, 1)
        nn.init.orthogonal_(self.rec.weight)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.rec.in_features)
        for t in range(x.shape[1]):
            h = torch.relu(self.inp(x[:, t]) + self.rec(h))
        return self.out(h).squeeze(-1)


def sample(n, gen):
    values = torch.rand(n, SEQ, generator=gen)
    gate = (torch.rand(n, SEQ, generator=gen) < 0.2).float()
    x = torch.stack([values, gate], -1)
    return x, (values * gate).sum(1)


def main():
    gen = torch.Generator().manual_seed(1)
    xtr, ytr = sample(1600, gen)
    xva, yva = sample(400, gen)
    net = Elman(2, HID)
    params = net.parameters()
    opt = torch.optim.SGD(params, lr=0.01, momentum=0.9)
    crit = nn.MSELoss()
    for step in range(STEPS):
        idx = torch.randint(0, len(xtr), (BATCH,), generator=gen)
        opt.zero_grad()
        loss = crit(net(xtr[idx]), ytr[idx])
        loss.backward()
        nn.utils.clip_grad_norm_(params, MAX_NORM)
        opt.step()
        if step % 40 == 0:
            print(step, f"{loss.item():.4f}")
    with torch.no_grad():
        print("RESULT", crit(net(xva), yva).item())


if __name__ == "__main__":
    main()
