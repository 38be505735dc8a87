"""Crop field segmentation from two-band satellite tiles, with accumulated micro-batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

torch.set_num_threads(1)

CFG = dict(epochs=6, micro_batch=8, accumulate=2, lr=0.3, tiles=240, size=16)


class Tiles(Dataset):
    def __init__(self, n, seed, label_noise=0.0):
        g = torch.Generator().manual_seed(seed)
        low = torch.randn(n, 1, 5, 5, generator=g)
        field = F.interpolate(low, size=CFG["size"], mode="bilinear", align_corners=True)
        self.mask = (field[:, 0] > 0.1).long()
        noise = torch.randn(n, 2, CFG["size"], CFG["size"], generator=g)
        self.image = torch.cat([field, -0.5 * field], 1) * 0.7 + 0.9 * noise
        flip = torch.rand(self.mask.shape, generator=g) < label_noise
        self.label = torch.where(flip, 1 - self.mask, self.mask)

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return self.image[i], self.label[i]


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.ReLU())


def main():
    torch.manual_seed(17)
    net = nn.Sequential(conv(2, 12), conv(12, 12), nn.Conv2d(12, 2, 1))
    loader = DataLoader(Tiles(CFG["tiles"], 1, label_noise=0.2), batch_size=CFG["micro_batch"], shuffle=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=CFG["lr"], momentum=0.9)
    updates = CFG["epochs"] * len(loader) // CFG["accumulate"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda it: 1.0 - it / updates)

    seen = 0
    for epoch in range(CFG["epochs"]):
        for image, label in loader:
            loss = F.cross_entropy(net(image), label)
            (loss / CFG["accumulate"]).backward()
            seen += 1
            if seen % CFG["accumulate"] == 0:
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")

    test = Tiles(80, 2)
    with torch.no_grad():
        prediction = net(test.image).argmax(1)
    print("RESULT", (prediction != test.mask).float().mean().item())


main()
