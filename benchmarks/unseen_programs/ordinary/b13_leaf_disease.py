"""Leaf disease classifier, small conv net in bfloat16 for an edge box."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)
dtype = torch.bfloat16


def conv_bn(cin, cout, stride):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
        nn.BatchNorm2d(cout, momentum=0.01, eps=1e-3),
        nn.ReLU(inplace=True),
    )


class LeafNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 12, 1), conv_bn(12, 24, 2), conv_bn(24, 24, 1))
        self.classifier = nn.Linear(24, classes)

    def forward(self, x):
        x = self.features(x).mean((2, 3))
        return self.classifier(x)


def leaves(n):
    """Green leaf, spots whose count and colour depend on the disease."""
    y = torch.randint(0, 4, (n,))
    img = 0.45 + 0.15 * torch.rand(n, 3, 12, 12)
    img[:, 1] += 0.8
    spot = torch.rand(n, 12, 12) < (0.06 + 0.10 * (y % 2))[:, None, None]
    red = (y // 2)[:, None, None].float()
    img[:, 0] += spot * (0.4 + 0.6 * red)
    img[:, 2] += spot * (1.0 - 0.6 * red)
    return (img * 4.0).to(dtype), y


images, labels = leaves(1200)
test_images, test_labels = leaves(400)

net = LeafNet().to(dtype)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 5], gamma=0.1)

for epoch in range(10):
    net.train()
    hits = 0
    for idx in torch.randperm(len(images)).split(24):
        logits = net(images[idx])
        loss = F.cross_entropy(logits.float(), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += (logits.argmax(1) == labels[idx]).sum().item()
    schedule.step()
    print(f"epoch {epoch}: train accuracy {hits / len(images):.3f}")

net.eval()
with torch.no_grad():
    out = torch.cat([net(c) for c in test_images.split(100)]).float()
print("test accuracy", (out.argmax(1) == test_labels).float().mean().item())
print("RESULT", F.cross_entropy(out, test_labels).item())
