import torch
from torch import nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
w = torch.randn(10, 3)


def make(n):
    x = torch.randn(n, 10) * 2 + 1
    return x, (torch.tanh(x) @ w + 0.7 * torch.randn(n, 3)).argmax(-1)


train_loader = DataLoader(TensorDataset(*make(600)), batch_size=50, shuffle=True)
vx, vy = make(1500)
model = nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
                      nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
swa_model = AveragedModel(model)
swa_sched = SWALR(opt, swa_lr=0.02, anneal_epochs=3)
START = 8
for epoch in range(20):
    model.train()
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch >= START:
        swa_model.update_parameters(model)
        swa_sched.step()
    if epoch % 5 == 4:
        current = swa_model if epoch >= START else model
        if current is swa_model:
            update_bn(train_loader, swa_model)
        current.eval()
        with torch.no_grad():
            print(epoch, loss.item(), F.cross_entropy(current(vx), vy).item())

update_bn(train_loader, swa_model)
swa_model.eval()
with torch.no_grad():
    print("result:", F.cross_entropy(swa_model(vx), vy).item())
