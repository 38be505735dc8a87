"""Train a stacked heatmap network for keypoints and report the test localisation error."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)
K, SIZE = 4, 20


def make_people(n, seed):
    r = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    img = r.normal(0, 0.12, (n, 1, SIZE, SIZE)).astype(np.float32)
    kps = np.zeros((n, K, 2), np.float32)
    for i in range(n):
        c = r.uniform(7, SIZE - 7, 2)
        ang = r.uniform(0, 2 * np.pi)
        for k in range(K):
            a = ang + k * 2 * np.pi / K
            kps[i, k] = c + (4 + k) * np.array([np.sin(a), np.cos(a)])
            kps[i, k] = kps[i, k].clip(1, SIZE - 2)
            d2 = (yy - kps[i, k, 0]) ** 2 + (xx - kps[i, k, 1]) ** 2
            img[i, 0] += (0.6 + 0.35 * k) * np.exp(-d2 / (1.0 + 0.6 * k))
    noisy = kps + r.normal(0, 0.5, kps.shape)
    d2 = (yy - noisy[:, :, 0, None, None]) ** 2 + (xx - noisy[:, :, 1, None, None]) ** 2
    return dict(imgs=img, heatmaps=np.exp(-d2 / 4).astype(np.float32), keypoints=kps)


class Stage(nn.Module):
    def __init__(self, inp, f=16):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(inp, f, 3, padding=1), nn.BatchNorm2d(f), nn.ReLU())
        self.low = nn.Sequential(nn.Conv2d(f, f, 3, padding=1), nn.BatchNorm2d(f), nn.ReLU(),
                                 nn.Conv2d(f, f, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(f, K, 3, padding=1)

    def forward(self, x):
        up = self.down(x)
        low = F.interpolate(self.low(F.max_pool2d(up, 2)), scale_factor=2)
        return self.out(up + low)


class PoseNet(nn.Module):
    def __init__(self, nstack=2):
        super().__init__()
        self.stages = nn.ModuleList([Stage(1 + (K if i else 0)) for i in range(nstack)])

    def forward(self, imgs):
        preds, x = [], imgs
        for stage in self.stages:
            preds.append(stage(x))
            x = torch.cat([imgs, preds[-1]], 1)
        return torch.stack(preds, 1)


def calc_loss(preds, heatmaps):
    return ((preds - heatmaps[:, None]) ** 2).sum(dim=(2, 3, 4)).mean(0)


def make_train(config):
    net, optimizer = config["inference"]["net"], config["train"]["optimizer"]

    def step(batch_id, phase, **inputs):
        inputs = {k: torch.from_numpy(v) for k, v in inputs.items()}
        if phase != "inference":
            net.train(phase == "train")
            losses = calc_loss(net(inputs["imgs"]), inputs["heatmaps"])
            loss = losses.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()
        net.eval()
        with torch.no_grad():
            return net(inputs["imgs"])[:, -1]
    return step


def data_provider(sets, batch):
    def generator(phase):
        r = np.random.default_rng(1)
        while True:
            idx = r.integers(0, len(sets[phase]["imgs"]), batch)
            yield {k: v[idx] for k, v in sets[phase].items() if k != "keypoints"}
    gens = {p: generator(p) for p in ("train", "val")}
    return lambda phase: gens[phase]


def test_error(func, data):
    heat = func(0, "inference", imgs=data["imgs"])
    flat = heat.flatten(2).argmax(-1)
    pred = torch.stack([flat // SIZE, flat % SIZE], -1).float().numpy()
    return float(np.linalg.norm(pred - data["keypoints"], axis=-1).mean())


def main():
    sets = dict(train=make_people(160, 0), val=make_people(64, 1))
    test = make_people(200, 2)
    net = PoseNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    config = dict(inference=dict(net=net),
                  train=dict(optimizer=opt, train_iters=20, val_iters=4, epochs=10, epoch=0))
    func, data_func = make_train(config), data_provider(sets, 16)
    while config["train"]["epoch"] < config["train"]["epochs"]:
        for phase in ["train", "val"]:
            num_step = config["train"][f"{phase}_iters"]
            generator = data_func(phase)
            batch_id = num_step * config["train"]["epoch"]
            log = [func(batch_id + i, phase, **next(generator)) for i in range(num_step)]
            print(config["train"]["epoch"], phase, f"{np.mean(log):.5f}")
        config["train"]["epoch"] += 1
    print("RESULT", test_error(func, test))


if __name__ == "__main__":
    main()
