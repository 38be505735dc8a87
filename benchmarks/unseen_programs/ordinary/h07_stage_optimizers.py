"""Greedy layer-wise autoencoder: every stage gets its own optimizer, earlier layers are frozen; L-BFGS at the end."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(7)

mixing = torch.randn(4, 24)


def spectra(n):
    return torch.tanh(torch.randn(n, 4) @ mixing * 0.5)


x = spectra(1200)
sizes = [24, 16, 8]
encoders, decoders = nn.ModuleList(), nn.ModuleList()

for i, o in zip(sizes[:-1], sizes[1:]):
    enc, dec = nn.Sequential(nn.Linear(i, o), nn.Tanh()), nn.Linear(o, i)
    with torch.no_grad():
        h = x
        for previous in encoders:
            h = previous(h)
    opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=5e-3)
    for epoch in range(6):
        for idx in torch.randperm(len(h)).split(40):
            loss = (dec(enc(h[idx])) - h[idx]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
    print(f"stage {i}->{o}: {loss.item():.5f}")
    encoders.append(enc)
    decoders.insert(0, dec)

stack = nn.Sequential(*encoders, decoders[0], nn.Tanh(), *decoders[1:])
for p in encoders.parameters():
    p.requires_grad_(False)
polish = torch.optim.LBFGS(decoders.parameters(), lr=0.5, max_iter=8, line_search_fn="strong_wolfe")


def closure():
    polish.zero_grad()
    loss = (stack(x) - x).pow(2).mean()
    loss.backward()
    return loss


for r in range(6):
    print("polish", r, polish.step(closure).item())
v = spectra(400)
with torch.no_grad():
    print("RESULT", (stack(v) - v).pow(2).mean().item())
