import io
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(11)
torch.set_num_threads(1)
V, T, D = 20, 8, 32


class Net(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.emb = nn.Embedding.from_pretrained(table, freeze=True)
        self.conv = nn.Sequential(nn.Conv1d(D, D, 3, padding=1), nn.ReLU(), nn.Conv1d(D, D, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(D, 1)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        h = checkpoint(self.conv, h, use_reentrant=False)
        return self.fc(h.mean(-1)).squeeze(-1)


def batch(n):
    ids = torch.randint(0, V, (n, T))
    return ids, ((ids[:, 1:] > ids[:, :-1]).sum(1) >= 4).float()


net = Net(torch.randn(V, D))
opt = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=50)
skipped = 0
for step in range(180):
    ids, y = batch(64)
    with torch.autocast("cpu", dtype=torch.float16):
        logit = net(ids)
        loss = F.binary_cross_entropy_with_logits(logit.float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step == 90:
        f = io.BytesIO()
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()}, f)
        f.seek(0)
        ck = torch.load(f)
        net.load_state_dict(ck["net"])
        opt.load_state_dict(ck["opt"])
        scaler.load_state_dict(ck["scaler"])
    if step % 50 == 0:
        print(step, loss.item(), scaler.get_scale(), "skipped", skipped)
net.eval()
with torch.no_grad():
    ids, y = batch(2000)
    print("result:", F.binary_cross_entropy_with_logits(net(ids), y).item())
