"""Pre-train on a large source set with averaged weights, hand over through a file, fine-tune on few rows."""
import io
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.set_num_threads(1)
torch.manual_seed(33)
mixing = torch.randn(6, 30)
code = torch.randn(1500, 6)
rows = torch.tanh(code @ mixing) + 0.3 * torch.randn(1500, 30)
source = torch.stack([code[:, 0] * code[:, 1], code[:, 2].abs(), code[:, 3]], 1)
target = (code[:, 0] * code[:, 1] + code[:, 2].abs() - code[:, 3])


def encoder():
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def pretrain(buffer):
    net = nn.ModuleDict({"body": encoder(), "head": nn.Linear(32, 3)})
    smooth = AveragedModel(net["body"], multi_avg_fn=get_ema_multi_avg_fn(0.9))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(110):
        i = torch.randint(0, 1200, (96,))
        loss = nn.functional.mse_loss(net["head"](net["body"](rows[i])), source[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth.update_parameters(net["body"])
    print("pre-training loss", round(loss.item(), 4))
    torch.save({"weights": smooth.state_dict()}, buffer)


@torch.no_grad()
def warm_start(module, weights):
    for name, tensor in module.state_dict().items():
        if name in weights and weights[name].shape == tensor.shape:
            tensor.copy_(weights[name])


def finetune(buffer):
    body, head = encoder(), nn.Linear(32, 1)
    warm_start(body, torch.load(buffer)["weights"])
    opt = torch.optim.Adam([{"params": body.parameters(), "lr": 3e-4}, {"params": head.parameters(), "lr": 2e-2}])
    for _ in range(40):
        i = torch.randint(1200, 1260, (32,))
        loss = nn.functional.mse_loss(head(body(rows[i])).squeeze(1), target[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return nn.functional.mse_loss(head(body(rows[1260:])).squeeze(1), target[1260:]).item()


buffer = io.BytesIO()
pretrain(buffer)
buffer.seek(0)
print("RESULT", finetune(buffer))
