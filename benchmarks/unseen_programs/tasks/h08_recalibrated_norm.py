"""Trains a texture classifier whose norm statistics are measured afresh for evaluation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(251)


def textures(n, seed, side=14):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 4, (n,), generator=g)
    noise = torch.randn(n, 1, side + 4, side + 4, generator=g)
    kernels = torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(2))
    kernels = kernels / kernels.flatten(1).norm(dim=1).view(4, 1, 1, 1)
    out = F.conv2d(noise, kernels)
    image = out[torch.arange(n), label].unsqueeze(1)
    return image + 0.2 * torch.randn(n, 1, side, side, generator=g), label


class TextureNet(nn.Module):
    """While training, the running statistics are those of the last batch only."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 24, 5, bias=False), nn.BatchNorm2d(24, momentum=1.0)
        self.conv2, self.norm2 = nn.Conv2d(24, 24, 3, bias=False), nn.BatchNorm2d(24, momentum=1.0)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return self.head(x.mean((2, 3)))


def norms(net):
    return [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]


@torch.no_grad()
def recalibrate(net, images, batches=10, size=100):
    """Plain average of the batch statistics of the present weights."""
    kept = [m.momentum for m in norms(net)]
    for m in norms(net):
        m.reset_running_stats()
        m.momentum = None
    net.train()
    for pick in torch.randperm(len(images))[: batches * size].split(size):
        net(images[pick])
    for m, momentum in zip(norms(net), kept):
        m.momentum = momentum


@torch.no_grad()
def evaluate(net, images, labels):
    net.eval()
    return F.cross_entropy(net(images), labels).item()


images, labels = textures(1000, 1)
val_images, val_labels = textures(300, 2)
net = TextureNet()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=8)
for epoch in range(8):
    net.train()
    for pick in torch.randperm(len(images)).split(25):
        loss = F.cross_entropy(net(images[pick]), labels[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    sched.step()
    recalibrate(net, images)
    print(f"epoch {epoch} loss {loss.item():.4f} val {evaluate(net, val_images, val_labels):.4f}")
print("RESULT", evaluate(net, val_images, val_labels))
