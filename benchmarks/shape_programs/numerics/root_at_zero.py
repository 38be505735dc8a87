"""Recover a piecewise flat picture from its blurred copy by gradient descent on the picture itself."""
import torch
import torch.nn.functional as F

torch.manual_seed(18)
torch.set_num_threads(1)
SIDE = 48


def scene():
    image = torch.zeros(1, 1, SIDE, SIDE)
    image[..., 8:24, 10:30] = 1.0
    image[..., 20:40, 26:42] = 0.5
    return image


def blur(image):
    line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0])
    kernel = (line[:, None] * line[None] / 256).view(1, 1, 5, 5)
    return F.conv2d(image, kernel, padding=2)


def edges(image):
    right = image[..., :-1, 1:] - image[..., :-1, :-1]
    down = image[..., 1:, :-1] - image[..., :-1, :-1]
    return torch.hypot(right, down)


def restore(seen, strength=0.02, steps=120):
    picture = torch.zeros_like(seen).requires_grad_()
    opt = torch.optim.Adam([picture], lr=0.03)

    def closure():
        opt.zero_grad()
        misfit = (blur(picture) - seen).square().mean()
        total = misfit + strength * edges(picture).mean()
        total.backward()
        return total

    for step in range(steps):
        total = opt.step(closure)
        if step % 30 == 0:
            print(step, float(total))
    return picture.detach()


truth = scene()
seen = blur(truth) + 0.05 * torch.randn_like(truth)
print("RESULT", (restore(seen) - truth).square().mean().item())
