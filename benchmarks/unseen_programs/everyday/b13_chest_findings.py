"""Detect several findings per radiograph with a small convolutional network in bf16 autocast."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(1313)

FINDINGS, SIZE = 5, 20


def make_radiographs(n):
    g = torch.Generator().manual_seed(6)
    shapes = torch.randn(FINDINGS, 5, 5, generator=g)
    present = (torch.rand(n, FINDINGS) < torch.tensor([0.4, 0.3, 0.25, 0.2, 0.15])).float()
    image = 0.5 * torch.randn(n, SIZE, SIZE)
    for f in range(FINDINGS):
        row = torch.randint(0, SIZE - 5, (n,))
        col = torch.randint(0, SIZE - 5, (n,))
        for i in torch.nonzero(present[:, f]).flatten().tolist():
            image[i, row[i]:row[i] + 5, col[i]:col[i] + 5] += 1.2 * shapes[f]
    return image.unsqueeze(1), present


class FindingNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(width, FINDINGS), nn.Sigmoid())

    def forward(self, x):
        return self.classifier(self.features(x))


def prevalence(target):
    return ", ".join(f"{p:.2f}" for p in target.mean(0).tolist())


@torch.no_grad()
def validate(model, image, present):
    model.eval()
    prob = model(image).clamp(1e-6, 1 - 1e-6)
    loss = -(present * prob.log() + (1 - present) * (1 - prob).log()).mean()
    hit = ((prob > 0.5) == (present > 0.5)).float().mean()
    model.train()
    return loss.item(), hit.item()


def main():
    image, present = make_radiographs(1500)
    val_image, val_present = make_radiographs(300)
    print("prevalence", prevalence(present))
    model = FindingNet()
    criterion = nn.BCELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    for step in range(200):
        idx = torch.randint(0, len(image), (32,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            prob = model(image[idx])
            loss = criterion(prob, present[idx])
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 49:
            val_loss, hit = validate(model, val_image, val_present)
            print(f"step {step + 1} loss {loss.item():.4f} val {val_loss:.4f} hit {hit:.3f}")
    print(f"RESULT {validate(model, val_image, val_present)[0]:.5f}")


if __name__ == "__main__":
    main()
