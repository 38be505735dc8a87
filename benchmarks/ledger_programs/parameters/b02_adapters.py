import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=4, alpha=8):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.scaling = alpha / r
        self.lora_A = nn.Parameter(base.weight.new_empty(r, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_empty(base.out_features, r))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.lora_A)
        nn.init.zeros_(self.lora_B)

    def forward(self, x):
        return self.base(x) + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


def inject(model, targets=("fc1", "fc2", "out")):
    for name in targets:
        setattr(model, name, LoRALinear(getattr(model, name)))
    return model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 48)
        self.fc2 = nn.Linear(48, 48)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        x = F.silu(self.fc1(x))
        x = F.silu(self.fc2(x))
        return self.out(x).squeeze(-1)


w_pre, w_task = torch.randn(10), torch.randn(10)


def data(n, w):
    x = torch.randn(n, 10)
    return x, torch.tanh(x @ w) + 0.1 * x[:, 0]


def fit(model, w, steps, lr):
    params = [p for p in model.parameters() if p.requires_grad]
    print("trainable:", sum(p.numel() for p in params))
    opt = torch.optim.AdamW(params, lr=lr)
    for i in range(steps):
        x, y = data(64, w)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 100 == 0:
            print(f"{i:4d} {loss.item():.4f}")


base = Net()
fit(base, w_pre, 200, 5e-3)
model = inject(copy.deepcopy(base))
fit(model, w_task, 400, 5e-3)
with torch.no_grad():
    x, y = data(1000, w_task)
    print("result:", F.mse_loss(model(x), y).item())
