"""Fine-tuning from a checkpoint with another label set: the old head is left behind, strict=False."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

D = 20
mix = torch.randn(6, D)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(D, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.head = nn.Linear(24, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def samples(n, classes):
    z = torch.randn(n, 6)
    y = z[:, :classes].argmax(1)
    return torch.tanh(z @ mix * 0.5) + 0.2 * torch.randn(n, D), y


def step(net, opt, x, y):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


old = Net(6)
opt = torch.optim.Adam(old.parameters(), lr=4e-3)
for i in range(250):
    loss = step(old, opt, *samples(64, 6))
print("pre-training", loss)

new = Net(4)
state = {k: v for k, v in old.state_dict().items() if not k.startswith("head.")}
report = new.load_state_dict(state, strict=False)
print("fresh:", report.missing_keys)
for p in new.backbone.parameters():
    p.requires_grad_(False)

opt = torch.optim.Adam(new.head.parameters(), lr=1e-2)
x, y = samples(300, 4)
for epoch in range(30):
    new.train()
    new.backbone.eval()
    for idx in torch.randperm(300).split(60):
        loss = step(new, opt, x[idx], y[idx])
print("head", loss)
new.eval()
x, y = samples(800, 4)
with torch.no_grad():
    print("RESULT", F.cross_entropy(new(x), y).item())
