"""Frame-wise phoneme classification with an LSTM, SGD and automatic mixed precision."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(97)

FRAMES, MELS, PHONES, BATCH = 20, 16, 8, 16
mean = torch.randn(PHONES, MELS)


def utterances(n):
    segments = torch.randint(0, PHONES, (n, FRAMES // 4))
    phones = segments.repeat_interleave(4, dim=1)
    return mean[phones] + 0.9 * torch.randn(n, FRAMES, MELS), phones


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(MELS, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.out = nn.Linear(32, PHONES)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.float16):
            h = torch.tanh(self.proj(x))
        h, _ = self.lstm(h.float())
        with torch.autocast("cpu", dtype=torch.float16):
            return self.out(h)


def main(epochs=5, lr=0.3, max_grad_norm=2.0):
    x, phones = utterances(640)
    model = Acoustic()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)

    for epoch in range(epochs):
        for idx in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            logits = model(x[idx]).float()
            loss = criterion(logits.flatten(0, 1), phones[idx].flatten())
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch} frame loss {loss.item():.4f}")

    x, phones = utterances(200)
    with torch.no_grad():
        logits = model(x).float()
        print("RESULT", criterion(logits.flatten(0, 1), phones.flatten()).item())


main()
