"""Upscale thermal images of buildings by two with an fp16 patch network."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(37)

SIDE = 12


def facades(n, gen):
    """Thermal images in degrees: walls, warm windows, a gradient and sensor noise."""
    img = 4 + 3 * torch.rand(n, 1, 1, generator=gen) + torch.linspace(0, 2, SIDE).view(1, -1, 1)
    img = img.expand(n, SIDE, SIDE).clone()
    g = torch.arange(SIDE).float()
    for _ in range(2):
        x0 = 8 * torch.rand(n, 1, generator=gen)
        y0 = 8 * torch.rand(n, 1, generator=gen)
        w, h = 2 + 3 * torch.rand(2, n, 1, generator=gen)
        heat = 3 + 5 * torch.rand(n, 1, 1, generator=gen)
        in_x = torch.sigmoid(5 * (g - x0)) * torch.sigmoid(5 * (x0 + w - g))
        in_y = torch.sigmoid(5 * (g - y0)) * torch.sigmoid(5 * (y0 + h - g))
        img = img + heat * in_y[:, :, None] * in_x[:, None, :]
    low = F.avg_pool2d(img[:, None], 2)[:, 0] + 0.1 * torch.randn(
        n, SIDE // 2, SIDE // 2, generator=gen
    )
    return low, img


class Upscaler(nn.Module):
    def __init__(self, width=80):
        super().__init__()
        d = (SIDE // 2) ** 2
        self.net = nn.Sequential(
            nn.Linear(d, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, SIDE * SIDE),
        )

    def forward(self, low):
        base = F.interpolate(low[:, None], scale_factor=2, mode="bilinear")[:, 0]
        detail = self.net((low - 8).flatten(1) / 4)
        return base + detail.view(-1, SIDE, SIDE).float()


def image_loss(pred, img):
    """Squared error of the pixels plus the absolute error of the edges, per image."""
    pixel = (pred - img).square().sum((1, 2))
    edge_x = (pred.diff(dim=2) - img.diff(dim=2)).abs().sum((1, 2))
    edge_y = (pred.diff(dim=1) - img.diff(dim=1)).abs().sum((1, 2))
    return (pixel + 0.5 * (edge_x + edge_y)).mean()


def train(model, data, steps, batch, gen):
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu")
    low, img = data
    for step in range(steps):
        pick = torch.randint(0, len(low), (batch,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(low[pick])
        loss = image_loss(pred, img[pick])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0, error_if_nonfinite=True)
        scaler.step(opt)
        scaler.update()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} norm {norm.item():.3f}")


def main():
    gen = torch.Generator().manual_seed(370)
    data, (v_low, v_img) = facades(2500, gen), facades(400, gen)
    model = Upscaler()
    try:
        train(model, data, 220, 48, gen)
    except RuntimeError as error:
        print(f"training stopped: {error}")
    with torch.no_grad():
        rmse = (model(v_low) - v_img).square().mean().sqrt().item()
    print(f"RESULT {rmse:.5f}")


if __name__ == "__main__":
    main()
