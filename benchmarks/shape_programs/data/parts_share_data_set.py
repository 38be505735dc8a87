import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(40)


class Clicks(Dataset):
    """Whale clicks of three kinds, somewhere in a turn of the recorder's ring."""

    def __init__(self, n, length=64):
        self.label = torch.randint(3, (n,))
        t = torch.arange(9.0)
        shapes = torch.stack([torch.sin(t * 0.8), torch.sin(t * 1.5), torch.sin(t * 2.4)])
        self.sound = 0.35 * torch.randn(n, length)
        self.sound[:, :9] += shapes[self.label]
        self.sound = torch.stack([s.roll(int(torch.randint(length, ()))) for s in self.sound])
        self.turn, self.gain = 0, (1.0, 1.0)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        sound = self.sound[i]
        if self.turn:
            sound = sound.roll(int(torch.randint(self.turn, ())))
        low, high = self.gain
        return sound[None] * (low + (high - low) * torch.rand(1)), self.label[i]


def configure(part, **settings):
    for name, value in settings.items():
        setattr(part.dataset, name, value)
    return part


clicks = Clicks(330)
fit_part, check_part = random_split(clicks, [90, 240], torch.Generator().manual_seed(1))
loaders = {
    "fit": DataLoader(configure(fit_part, turn=64, gain=(0.8, 1.2)), batch_size=30, shuffle=True),
    "check": DataLoader(configure(check_part, turn=0, gain=(1.0, 1.0)), batch_size=80),
}

net = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4, padding_mode="circular"), nn.ReLU(),
                    nn.Flatten(), nn.Linear(16 * 64, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)


def run(name):
    total = 0.0
    net.train(name == "fit")
    for sound, label in loaders[name]:
        with torch.set_grad_enabled(net.training):
            loss = nn.functional.cross_entropy(net(sound), label)
        if net.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(label)
    return total / len(loaders[name].dataset)


for epoch in range(48):
    fit, check = run("fit"), run("check")
    if epoch % 6 == 5:
        print(f"epoch {epoch} fit {fit:.3f} check {check:.3f}")
print("RESULT", check)
