"""Optimise the pixels of an image against fixed random features with L-BFGS; report the loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)


def picture(kind, size=32):
    ax = torch.linspace(0, 1, size)
    y, x = torch.meshgrid(ax, ax, indexing="ij")
    if kind == "content":
        disk = ((x - 0.5) ** 2 + (y - 0.45) ** 2 < 0.08).float()
        return torch.stack([0.3 + 0.5 * disk, 0.4 + 0.2 * y, 0.8 - 0.5 * disk])[None]
    wave = torch.sin(30 * x + 8 * torch.sin(6 * y))
    return torch.stack([0.5 + 0.4 * wave, 0.5 - 0.3 * wave, 0.4 + 0.2 * torch.sin(25 * y)])[None]


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()
        self.loss = F.mse_loss(self.target, self.target)

    def forward(self, x):
        self.loss = F.mse_loss(x, self.target)
        return x


def gram_matrix(x):
    a, b, c, d = x.shape
    f = x.reshape(a * b, c * d)
    return f @ f.t() / (a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = gram_matrix(target).detach()
        self.loss = F.mse_loss(self.target, self.target)

    def forward(self, x):
        self.loss = F.mse_loss(gram_matrix(x), self.target)
        return x


def build(content, style):
    convs = [nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1),
             nn.Conv2d(24, 32, 3, padding=1)]
    model, contents, styles = nn.Sequential(), [], []
    for i, conv in enumerate(convs):
        nn.init.orthogonal_(conv.weight, gain=1.5)
        model.add_module(f"conv_{i}", conv)
        model.add_module(f"style_{i}", StyleLoss(model(style)))
        styles.append(model[-1])
        if i == 1:
            model.add_module(f"content_{i}", ContentLoss(model(content)))
            contents.append(model[-1])
        model.add_module(f"relu_{i}", nn.ReLU(inplace=False))
        model.add_module(f"pool_{i}", nn.AvgPool2d(2))
    return model, contents, styles


def main(steps=120, style_weight=2e4, content_weight=1.0):
    content, style = picture("content"), picture("style")
    image = content.clone()
    model, contents, styles = build(content, style)
    image.requires_grad_(True)
    model.eval()
    model.requires_grad_(False)
    optimizer = torch.optim.LBFGS([image])
    run, history = [0], []
    while run[0] <= steps:
        def closure():
            with torch.no_grad():
                image.clamp_(0, 1)
            optimizer.zero_grad()
            model(image)
            style_score = style_weight * sum(s.loss for s in styles)
            content_score = content_weight * sum(c.loss for c in contents)
            loss = style_score + content_score
            loss.backward()
            run[0] += 1
            history.append(loss.item())
            if run[0] % 20 == 0:
                print(f"run {run[0]} style {style_score.item():.5f} "
                      f"content {content_score.item():.5f}")
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        image.clamp_(0, 1)
        model(image)
        final = style_weight * sum(s.loss for s in styles) + sum(c.loss for c in contents)
    print(f"started at {history[0]:.5f}")
    print("RESULT", final.item())


if __name__ == "__main__":
    main()
