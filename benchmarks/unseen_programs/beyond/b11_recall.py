"""Trains a recurrent cell to name a symbol that it saw many steps earlier."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)

config = {"symbols": 6, "delay": 12, "hidden": 48, "batch": 64, "steps": 350, "lr": 4e-3}


def episodes(n, gen):
    """The first token is the symbol to remember; distractors follow, then a question token."""
    first = torch.randint(0, config["symbols"], (n, 1), generator=gen)
    noise = torch.randint(0, config["symbols"], (n, config["delay"]), generator=gen)
    noise = noise + config["symbols"]
    ask = torch.full((n, 1), 2 * config["symbols"])
    return torch.cat([first, noise, ask], dim=1), first.squeeze(1)


class Recall(nn.Module):
    def __init__(self, symbols, hidden):
        super().__init__()
        self.embed = nn.Embedding(2 * symbols + 1, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.head = nn.Linear(hidden, symbols)

    def start(self, n):
        return self.embed.weight.new_zeros(n, self.cell.hidden_size)

    def forward(self, tokens):
        state = self.start(len(tokens))
        for token in self.embed(tokens).unbind(dim=1):
            state = self.cell(token, state.detach())
        return self.head(state)


def evaluate(model, gen):
    model.eval()
    with torch.no_grad():
        tokens, answer = episodes(1000, gen)
        logits = model(tokens)
    model.train()
    right = (logits.argmax(dim=1) == answer).float().mean().item()
    return F.cross_entropy(logits, answer).item(), right


train_gen = torch.Generator().manual_seed(1)
val_gen = torch.Generator().manual_seed(2)
model = Recall(config["symbols"], config["hidden"])
optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
for step in range(1, config["steps"] + 1):
    tokens, answer = episodes(config["batch"], train_gen)
    loss = F.cross_entropy(model(tokens), answer)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0:
        val, right = evaluate(model, val_gen)
        print(f"step {step} loss {loss.item():.4f} norm {norm:.3f} val {val:.4f} right {right:.3f}")
val, right = evaluate(model, val_gen)
print("RESULT", round(val, 4))
