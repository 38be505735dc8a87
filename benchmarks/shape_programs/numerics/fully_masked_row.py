"""Imitate a player from recorded games. Only legal moves compete with one another."""
import torch
from torch import nn

torch.manual_seed(11)
torch.set_num_threads(1)
MOVES, DIM = 8, 12
taste = torch.randn(DIM, MOVES)


def positions(n):
    board = torch.randn(n, DIM)
    legal = torch.rand(n, MOVES) < 0.55
    score = (board @ taste).masked_fill(~legal, -100.0)
    alive = legal.any(1).float()
    return board, legal, score.argmax(1), alive


def log_policy(score, legal):
    score = score + torch.zeros_like(score).masked_fill(~legal, float("-inf"))
    return score - score.logsumexp(1, keepdim=True)


def imitation_loss(net, board, legal, move, alive):
    logp = log_policy(net(board), legal).gather(1, move[:, None]).squeeze(1)
    return -(logp * alive).sum() / alive.sum()


net = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, MOVES))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(140):
    batch = positions(64)
    opt.zero_grad()
    loss = imitation_loss(net, *batch)
    loss.backward()
    opt.step()
    if step % 35 == 0:
        print(step, loss.item())
board, legal, move, alive = positions(3000)
keep = alive > 0
with torch.no_grad():
    print("RESULT", imitation_loss(net, board[keep], legal[keep], move[keep], alive[keep]).item())
