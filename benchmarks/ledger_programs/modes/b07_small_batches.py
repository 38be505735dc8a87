import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, n_out):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.fc = nn.Linear(64, n_out)

    def forward(self, x):
        return self.fc(self.backbone(x))


W = torch.randn(12, 16) * 0.6
V1, V2 = torch.randn(16, 5), torch.randn(16, 3)


def data(n, V):
    x = torch.randn(n, 12)
    return x, (torch.tanh(x @ W) @ V).argmax(-1)


def freeze_bn(model):
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.eval()
            m.weight.requires_grad_(False)
            m.bias.requires_grad_(False)


# source task, large batches
src = Net(5)
opt = torch.optim.Adam(src.parameters(), lr=5e-3)
for _ in range(250):
    x, y = data(128, V1)
    loss = F.cross_entropy(src(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
ckpt = os.path.join(tempfile.mkdtemp(), "src.pth")
torch.save(src.backbone.state_dict(), ckpt)

# target task, memory only allows batches of 2
model = Net(3)
model.backbone.load_state_dict(torch.load(ckpt))
freeze_bn(model)
opt = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
vx, vy = data(1500, V2)
tx, ty = data(200, V2)
for epoch in range(5):
    model.train()
    for idx in torch.randperm(200).split(2):
        loss = F.cross_entropy(model(tx[idx]), ty[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        val = F.cross_entropy(model(vx), vy).item()
    print("epoch", epoch, val)
print("result:", val)
