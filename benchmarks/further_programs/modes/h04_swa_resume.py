"""SWA with update_bn, and a run that stops in the middle and resumes with model, optimizer, averages and RNG."""
import io
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)

EPOCHS, SWA_START, STOP = 14, 7, 10
W = torch.randn(16, 3)


def data(n):
    x = torch.randn(n, 16) * 1.5 + 0.5
    return x, torch.distributions.Categorical(logits=torch.tanh(x @ W) * 2).sample()


def build():
    net = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return net, opt, AveragedModel(net), SWALR(opt, swa_lr=0.02, anneal_epochs=3)


x, y = data(1200)
vx, vy = data(2000)


def save(net, opt, avg, sched, epoch):
    buf = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "avg": avg.state_dict(),
                "sched": sched.state_dict(), "epoch": epoch, "rng": torch.get_rng_state()}, buf)
    buf.seek(0)
    return buf


def load(buf):
    ck = torch.load(buf)
    net, opt, avg, sched = build()
    net.load_state_dict(ck["net"])
    opt.load_state_dict(ck["opt"])
    avg.load_state_dict(ck["avg"])
    sched.load_state_dict(ck["sched"])
    torch.set_rng_state(ck["rng"])
    return net, opt, avg, sched, ck["epoch"]


def train(net, opt, avg, sched, first, last):
    for epoch in range(first, last):
        net.train()
        for idx in torch.randperm(len(x)).split(40):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch >= SWA_START:
            avg.update_parameters(net)
            sched.step()
        net.eval()
        with torch.no_grad():
            print(epoch, loss.item(), F.cross_entropy(net(vx), vy).item())


net, opt, avg, sched = build()
train(net, opt, avg, sched, 0, STOP)
buf = save(net, opt, avg, sched, STOP)
net, opt, avg, sched, start = load(buf)
train(net, opt, avg, sched, start, EPOCHS)
update_bn(x.split(100), avg)
avg.eval()
with torch.no_grad():
    print("RESULT", F.cross_entropy(avg(vx), vy).item())
