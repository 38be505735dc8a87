import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(44)
torch.set_num_threads(1)


def noisy(n, noise):
    x = torch.rand(n, 2) * 2 - 1
    return x, torch.sin(4 * x[:, :1]) * torch.cos(3 * x[:, 1:]) + noise * torch.randn(n, 1)


loader = DataLoader(TensorDataset(*noisy(800, 0.5)), batch_size=40, shuffle=True)
xv, yv = noisy(1000, 0.0)
model = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
EPOCHS, SWA_START = 40, 16
scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.005, max_lr=0.1, step_size_up=2 * len(loader), mode="triangular2")
swa_model = AveragedModel(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.08, anneal_epochs=3, anneal_strategy="linear")

for epoch in range(EPOCHS):
    model.train()
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch < SWA_START:
            scheduler.step()
    if epoch >= SWA_START:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    if epoch % 8 == 7:
        model.eval()
        with torch.no_grad():
            print(f"epoch {epoch} lr {optimizer.param_groups[0]['lr']:.4f} val {F.mse_loss(model(xv), yv).item():.4f}")

update_bn(loader, swa_model)
swa_model.eval()
with torch.no_grad():
    print(f"result: {F.mse_loss(swa_model(xv), yv).item():.5f}")
