"""Imitate a player; moves that the rules forbid get log(0) added to their score."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(10)
torch.set_num_threads(1)
MOVES, DIM = 9, 14
taste = torch.randn(DIM, MOVES)


def games(n):
    board = torch.randn(n, DIM)
    allowed = (torch.rand(n, MOVES) < 0.5).float()
    allowed.scatter_(1, torch.randint(0, MOVES, (n, 1)), 1.0)
    move = (board @ taste + allowed.log()).argmax(1)
    return board, allowed, move


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, MOVES))

    def forward(self, board, allowed):
        return self.body(board) + torch.log(allowed)


net = Player()
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
for step in range(130):
    board, allowed, move = games(96)
    loss = F.cross_entropy(net(board, allowed), move)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
with torch.no_grad():
    board, allowed, move = games(2000)
    print("RESULT", F.cross_entropy(net(board, allowed), move).item())
