"""Quantisation-aware training of a spiking network on event patterns; report test error."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(91)
T, INPUT, CLASSES = 8, 40, 6
DECAY, THRESH, LENS = 0.5, 0.5, 0.5


def event_patterns(n, gen):
    rates = torch.rand(CLASSES, T // 2, INPUT, generator=torch.Generator().manual_seed(4)) ** 2
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    prob = 0.15 + 0.6 * rates.repeat_interleave(2, 1)[y]
    return (torch.rand(prob.shape, generator=gen) < prob).float(), y


class ActFun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return u.gt(THRESH).float()

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad * ((u - THRESH).abs() < LENS).float() / (2 * LENS)


def quantize(w, bits):
    scale = w.abs().max() / (2 ** (bits - 1) - 1)
    return torch.round(w / scale) * scale


class QuantLinear(nn.Linear):
    def __init__(self, i, o, bits=4):
        super().__init__(i, o)
        self.bits, self.quantized = bits, False

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    @torch.no_grad()
    def quantize_weight(self):
        self.weight.copy_(quantize(self.weight, self.bits))


class SNN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.fc1 = QuantLinear(INPUT, hidden)
        self.fc2 = QuantLinear(hidden, hidden)
        self.fc3 = QuantLinear(hidden, CLASSES)

    def layers(self):
        return self.fc1, self.fc2, self.fc3

    def enable_quantization(self):
        for layer in self.layers():
            layer.quantized = True
            layer.quantize_weight()

    def forward(self, x):
        mem = [torch.zeros(len(x), l.out_features) for l in self.layers()]
        spk = [torch.zeros_like(m) for m in mem]
        total = 0.0
        for t in range(T):
            inp = x[:, t]
            for k, layer in enumerate(self.layers()):
                mem[k] = mem[k] * DECAY * (1 - spk[k]) + layer(inp)
                spk[k] = ActFun.apply(mem[k])
                inp = spk[k]
            total = total + inp
        return total / T


@torch.no_grad()
def error(model, x, y):
    return (model(x).argmax(1) != y).float().mean().item()


def train(model, data, lr, epochs, tag, val):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    x, y = data
    for epoch in range(epochs):
        running = 0.0
        batches = torch.randperm(len(x)).split(40)
        for idx in batches:
            out = model(x[idx])
            loss = F.mse_loss(out, F.one_hot(y[idx], CLASSES).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if model.fc1.quantized:
                for layer in model.layers():
                    layer.quantize_weight()
            running += loss.item()
        print(f"{tag} epoch {epoch} loss {running / len(batches):.4f} "
              f"test_error {error(model, *val):.4f}")


def main():
    gen = torch.Generator().manual_seed(0)
    data, val = event_patterns(800, gen), event_patterns(400, gen)
    model = SNN()
    train(model, data, 1e-3, 2, "fp32", val)
    model.enable_quantization()
    train(model, data, 1e-3, 8, "int4", val)
    for layer in model.layers():
        layer.quantize_weight()
    print("RESULT", error(model, *val))


if __name__ == "__main__":
    main()
