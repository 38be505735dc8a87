import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
W = torch.randn(12, 16) * 0.6
V1, V2 = torch.randn(16, 5), torch.randn(16, 3)


def data(n, V):
    x = torch.randn(n, 12)
    return x, (torch.tanh(x @ W) @ V).argmax(-1)


class Backbone(nn.Module):
    def __init__(self, norm_eval=False):
        super().__init__()
        self.norm_eval = norm_eval
        self.net = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(),
                                 nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1))

    def train(self, mode=True):
        super().train(mode)
        if mode and self.norm_eval:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm1d):
                    m.eval()
        return self

    def forward(self, x):
        return self.net(x)


class Model(nn.Module):
    def __init__(self, backbone, n):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(64, n)

    def forward(self, x):
        return self.head(self.backbone(x))


src = Model(Backbone(), 5)
opt = torch.optim.Adam(src.parameters(), lr=5e-3)
for _ in range(200):
    x, y = data(128, V1)
    loss = F.cross_entropy(src(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()

model = Model(copy.deepcopy(src.backbone), 3)
model.backbone.norm_eval = True
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
tx, ty = data(250, V2)
vx, vy = data(1500, V2)
for epoch in range(4):
    model.train()
    for idx in torch.randperm(250).split(2):
        loss = F.cross_entropy(model(tx[idx]), ty[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        v = F.cross_entropy(model(vx), vy).item()
    print(epoch, v)
print("result:", v)
