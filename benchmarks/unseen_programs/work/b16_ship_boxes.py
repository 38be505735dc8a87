"""Single-object box regression on radar tiles in fp16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(19)

TILE = 16


def radar_tiles(n, gen):
    """Tiles with one bright ship; the box is (centre x, centre y, width, height) in pixels."""
    cx = 4 + 8 * torch.rand(n, generator=gen)
    cy = 4 + 8 * torch.rand(n, generator=gen)
    w = 2 + 4 * torch.rand(n, generator=gen)
    h = 2 + 4 * torch.rand(n, generator=gen)
    g = torch.arange(TILE).float()
    in_x = torch.sigmoid(4 * (w[:, None] / 2 - (g[None] - cx[:, None]).abs()))
    in_y = torch.sigmoid(4 * (h[:, None] / 2 - (g[None] - cy[:, None]).abs()))
    tile = in_y[:, :, None] * in_x[:, None, :]
    clutter = 0.15 * torch.randn(n, TILE, TILE, generator=gen).abs()
    return (tile + clutter).flatten(1), torch.stack([cx, cy, w, h], 1)


class BoxNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(TILE * TILE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.box = nn.Linear(width, 4)
        self.register_buffer("centre", torch.tensor([8.0, 8.0, 4.0, 4.0]))

    def forward(self, tiles):
        return self.box(self.body(tiles)).float() + self.centre


class DetectorTrainer:
    def __init__(self, model, lr, gamma):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.8)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, gamma)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**32)

    def train_step(self, tiles, boxes):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.model(tiles)
        loss = F.smooth_l1_loss(pred, boxes, reduction="none").sum()
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), 20.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.sched.step()
        return loss.item()

    @torch.no_grad()
    def box_error(self, tiles, boxes):
        return (self.model(tiles) - boxes).abs().mean().item()


def main():
    gen = torch.Generator().manual_seed(190)
    tiles, boxes = radar_tiles(3000, gen)
    v_tiles, v_boxes = radar_tiles(500, gen)
    trainer = DetectorTrainer(BoxNet(), lr=5e-2, gamma=0.93)
    for step in range(110):
        pick = torch.randint(0, len(tiles), (64,), generator=gen)
        loss = trainer.train_step(tiles[pick], boxes[pick])
        if step % 15 == 0:
            lr = trainer.opt.param_groups[0]["lr"]
            print(
                f"step {step} loss {loss:.3f} lr {lr:.5f}"
                f" scale {trainer.scaler.get_scale():.0f}"
                f" val {trainer.box_error(v_tiles, v_boxes):.3f}"
            )
    print(f"RESULT {trainer.box_error(v_tiles, v_boxes):.5f}")


if __name__ == "__main__":
    main()
