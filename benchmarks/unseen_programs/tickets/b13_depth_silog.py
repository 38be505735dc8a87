"""Train a depth network with sparse ground truth and a scale-invariant log loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(27)
H, W, MAX_DEPTH = 16, 24, 10.0


def scenes(n, gen):
    yy = torch.linspace(1, 0, H)[None, :, None].expand(n, H, W)
    depth = 1.0 + 7.0 * yy * (0.6 + 0.4 * torch.rand(n, 1, 1, generator=gen))
    xs = torch.arange(W).float()[None, None]
    for _ in range(3):
        c = torch.rand(n, 1, 1, generator=gen) * W
        w = 2 + 3 * torch.rand(n, 1, 1, generator=gen)
        top = torch.rand(n, 1, 1, generator=gen) * 0.7
        near = 0.3 + 5 * torch.rand(n, 1, 1, generator=gen)
        box = ((xs - c).abs() < w) & (yy < 1 - top) & (near < depth)
        depth = torch.where(box, near.expand_as(depth), depth)
    shade = torch.exp(-depth / 5) + 0.03 * torch.randn(depth.shape, generator=gen)
    edge = F.pad(depth[:, :, 1:] - depth[:, :, :-1], (0, 1)).abs().clamp(max=2) / 4
    focal = torch.ones_like(depth) * yy
    image = torch.stack([shade, edge + 0.03 * torch.randn(depth.shape, generator=gen), focal], 1)
    lidar = torch.rand(depth.shape, generator=gen) < 0.4
    return image, torch.where(lidar, depth, torch.zeros_like(depth)), depth


class silog_loss(nn.Module):
    def __init__(self, variance_focus):
        super().__init__()
        self.variance_focus = variance_focus

    def forward(self, depth_est, depth_gt, mask):
        d = torch.log(depth_est[mask]) - torch.log(depth_gt[mask])
        return torch.sqrt((d ** 2).mean() - self.variance_focus * (d.mean() ** 2)) * 10.0


class upconv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1)

    def forward(self, x):
        return F.elu(self.conv(F.interpolate(x, scale_factor=2, mode="nearest")))


class BtsModel(nn.Module):
    def __init__(self, f=10):
        super().__init__()
        self.conv0 = nn.Conv2d(3, f, 3, padding=1)
        self.conv1 = nn.Conv2d(f, 2 * f, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(2 * f, 2 * f, 3, stride=2, padding=1)
        self.bn1, self.bn2 = nn.BatchNorm2d(2 * f), nn.BatchNorm2d(2 * f)
        self.up2, self.up1 = upconv(2 * f, 2 * f), upconv(4 * f, f)
        self.get_depth = nn.Conv2d(2 * f, 1, 3, padding=1)
        nn.init.normal_(self.get_depth.weight, std=0.01)
        nn.init.constant_(self.get_depth.bias, 0.4)

    def forward(self, x):
        s0 = F.elu(self.conv0(x))
        s1 = F.elu(self.bn1(self.conv1(s0)))
        s2 = F.elu(self.bn2(self.conv2(s1)))
        u = torch.cat([self.up2(s2), s1], 1)
        u = torch.cat([self.up1(u), s0], 1)
        return MAX_DEPTH * F.relu(self.get_depth(u)).clamp(max=1.0)


def compute_errors(model, image, depth):
    model.eval()
    with torch.no_grad():
        pred = model(image)[:, 0]
    model.train()
    return ((pred - depth).abs() / depth).mean().item()


def set_poly_lr(optimizer, base, step, total):
    lr = base * (1 - step / total) ** 0.9 + base * 0.1
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def main():
    gen = torch.Generator().manual_seed(9)
    image, sparse, _ = scenes(300, gen)
    vimage, _, vdepth = scenes(80, gen)
    model = BtsModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=1e-2, eps=1e-6)
    criterion, total = silog_loss(variance_focus=0.85), 200
    for step in range(1, total + 1):
        idx = torch.randint(0, len(image), (12,))
        depth_gt = sparse[idx][:, None]
        mask = depth_gt > 0.1
        optimizer.zero_grad()
        loss = criterion(model(image[idx]), depth_gt, mask)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        lr = set_poly_lr(optimizer, 1.5e-3, step, total)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} lr {lr:.5f} silog {loss.item():.4f} "
                  f"abs_rel {compute_errors(model, vimage, vdepth):.4f}")
    print("RESULT", compute_errors(model, vimage, vdepth))


if __name__ == "__main__":
    main()
