"""Train a small vision transformer to read the direction between two blobs."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(88)

SIZE, PATCH, WIDTH, CLASSES = 16, 4, 48, 8
TOKENS = (SIZE // PATCH) ** 2


def render(n):
    """A bright and a darker blob; the class is the direction from one to the other."""
    label = torch.randint(0, CLASSES, (n,))
    angle = label.float() * (2 * torch.pi / CLASSES) + 0.15 * torch.randn(n)
    centre = SIZE / 2 + 1.5 * torch.randn(n, 2).clamp(-1, 1)
    offset = 4.5 * torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    grid = torch.stack([xx, yy], -1).float()

    def blob(c):
        d = (grid[None] - c[:, None, None, :]).pow(2).sum(-1)
        return torch.exp(-d / 5.0)

    image = blob(centre + offset) + 0.5 * blob(centre - offset)
    image = image + 0.1 * torch.randn(n, SIZE, SIZE)
    return ((image - 0.15) / 0.3).unsqueeze(1), label


class Layer(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(),
                                 nn.Linear(2 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        qkv = self.qkv(self.n1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, w)
        x = x + self.proj(a)
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, TOKENS + 1, WIDTH))
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(depth)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def weight_decay_groups(model, weight_decay):
    decay, no_decay = [], []
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            decay.append(module.weight)
            no_decay.append(module.bias)
        elif isinstance(module, nn.LayerNorm):
            no_decay += [module.weight, module.bias]
    return [{"params": decay, "weight_decay": weight_decay},
            {"params": no_decay, "weight_decay": 0.0}]


x, y = render(2500)
vx, vy = render(500)
model = ViT()
optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.02), lr=2e-3)
steps = 300
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
for step in range(steps):
    idx = torch.randint(0, len(x), (64,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x[idx])
    loss = F.cross_entropy(logits.float(), y[idx])
    model.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 60 == 0:
        print(step, f"{loss.item():.4f}")

model.eval()
with torch.no_grad():
    print(f"RESULT {F.cross_entropy(model(vx), vy).item():.5f}")
