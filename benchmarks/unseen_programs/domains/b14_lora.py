import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(6)

DIM, CLASSES = 20, 6


def task(n, centres):
    y = torch.randint(0, CLASSES, (n,))
    return centres[y] + 0.7 * torch.randn(n, DIM), y


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)
        self.bias = nn.Parameter(base.bias.detach().clone(), requires_grad=False)
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def delta(self):
        return self.scaling * (self.lora_B @ self.lora_A).detach()

    def train(self, mode=True):
        super().train(mode)
        if not mode:
            self.weight.data += self.delta()
        return self

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        if self.training:
            y = y + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)
        return y


def build():
    return nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def add_lora(model):
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, name, LoRALinear(layer))
    return model


def fit_epoch(model, loader, opt):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss = hit = n = 0
    for x, y in loader:
        out = model(x)
        loss += F.cross_entropy(out, y, reduction="sum").item()
        hit += (out.argmax(1) == y).sum().item()
        n += len(y)
    return loss / n, hit / n


def loader_for(data, shuffle=False):
    return DataLoader(TensorDataset(*data), batch_size=50, shuffle=shuffle)


def main():
    source = torch.randn(CLASSES, DIM)
    target = 0.4 * source + 0.8 * torch.randn(CLASSES, DIM)

    model = build()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    pre = loader_for(task(3000, source), True)
    for _ in range(6):
        fit_epoch(model, pre, opt)
    print("pretrained:", evaluate(model, loader_for(task(500, source))))

    model = add_lora(model)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, weight_decay=0.0)
    train = loader_for(task(1000, target), True)
    held = loader_for(task(500, target))
    for epoch in range(20):
        last = fit_epoch(model, train, opt)
        train_loss, _ = evaluate(model, train)
        held_loss, acc = evaluate(model, held)
        print(f"epoch {epoch} batch {last:.3f} train {train_loss:.3f} held-out {held_loss:.3f} acc {acc:.3f}")
    print("RESULT", evaluate(model, loader_for(task(1000, target)))[0])


if __name__ == "__main__":
    main()
