"""Trains an autoregressive recurrent forecaster on seasonal series with covariates."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(61)

ENCODER, DECODER, COVARIATES = 24, 12, 2


class SeriesDataset:
    """Windows of scaled series; the continuous inputs hold the covariates and the scaled target."""

    target_pos = COVARIATES

    def __init__(self, n_series, length):
        t = torch.arange(length).float()
        season = torch.sin(6.2832 * t / 12 + 6.2832 * torch.rand(n_series, 1))
        promo = (torch.rand(n_series, length) < 0.25).float()
        ar = torch.zeros(n_series, length)
        for k in range(1, length):
            ar[:, k] = 0.8 * ar[:, k - 1] + 0.25 * torch.randn(n_series)
        level = 20 * torch.rand(n_series, 1)
        self.y = level + 3 * season + 2.5 * promo + ar
        self.covariates = torch.stack([promo, (t % 12 / 6 - 1).expand(n_series, -1)], -1)

    def windows(self, n, start, stop):
        rows = torch.randint(0, len(self.y), (n,))
        first = torch.randint(start, stop - ENCODER - DECODER + 1, (n,))
        idx = first[:, None] + torch.arange(ENCODER + DECODER)
        y = self.y[rows[:, None], idx]
        center, scale = y[:, :ENCODER].mean(1, keepdim=True), y[:, :ENCODER].std(1, keepdim=True)
        scaled = (y - center) / scale
        cont = torch.cat([self.covariates[rows[:, None], idx], scaled.unsqueeze(-1)], -1)
        return {"encoder_cont": cont[:, :ENCODER], "decoder_cont": cont[:, ENCODER:],
                "decoder_target": scaled[:, ENCODER:]}


class NormalLoss(nn.Module):
    def forward(self, params, target):
        dist = torch.distributions.Normal(params[..., 0], nn.functional.softplus(params[..., 1])
                                          + 1e-2)
        return -dist.log_prob(target).mean()


class AutoregressiveRNN(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.rnn = nn.LSTM(COVARIATES + 1, hidden, batch_first=True)
        self.projector = nn.Linear(hidden, 2)
        self.target_pos = SeriesDataset.target_pos

    def construct_input_vector(self, cont, one_off_target=None):
        """Inputs of the network from the covariates and the target."""
        input_vector = cont.clone()
        if one_off_target is not None:
            input_vector[:, 0, self.target_pos] = one_off_target
        return input_vector

    def encode(self, x):
        inp = self.construct_input_vector(x["encoder_cont"])[:, 1:]
        return self.rnn(inp)[1]

    def decode_all(self, x, state):
        last = x["encoder_cont"][:, -1, self.target_pos]
        inp = self.construct_input_vector(x["decoder_cont"], last)
        return self.projector(self.rnn(inp, state)[0])

    @torch.no_grad()
    def decode_autoregressive(self, x, state):
        prev, out = x["encoder_cont"][:, -1, self.target_pos], []
        for step in range(DECODER):
            inp = x["decoder_cont"][:, step:step + 1].clone()
            inp[:, 0, self.target_pos] = prev
            h, state = self.rnn(inp, state)
            prev = self.projector(h)[:, 0, 0]
            out.append(prev)
        return torch.stack(out, 1)

    def forward(self, x):
        state = self.encode(x)
        return self.decode_all(x, state) if self.training else self.decode_autoregressive(x, state)


def train_model(dataset, steps=200, lr=5e-3):
    model, loss_fn = AutoregressiveRNN(), NormalLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps)
    val = dataset.windows(500, 120, 180)
    for step in range(1, steps + 1):
        model.train()
        x = dataset.windows(64, 0, 140)
        loss = loss_fn(model(x), x["decoder_target"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            model.eval()
            mae = (model(val) - val["decoder_target"]).abs().mean().item()
            print(f"step {step:3d} train_loss {loss.item():.4f} val_MAE {mae:.4f}")
    return mae


print("RESULT", round(train_model(SeriesDataset(200, 180)), 5))
