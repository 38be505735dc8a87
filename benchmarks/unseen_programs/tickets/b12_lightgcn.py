"""Train LightGCN on a synthetic user-item graph and report one minus recall@10."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(14)
USERS, ITEMS, DIM, LAYERS = 300, 200, 24, 2


def make_graph():
    u, v = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
    score = 1.2 * u @ v.T + 0.6 * torch.randn(ITEMS)
    prob = torch.sigmoid(score - 2.4)
    hit = (torch.rand(USERS, ITEMS) < prob).nonzero()
    hit = hit[torch.randperm(len(hit))]
    cut = int(0.8 * len(hit))
    return hit[:cut], hit[cut:]


class LGConv(nn.Module):
    def forward(self, x, edge_index):
        row, col = edge_index
        deg = torch.zeros(x.size(0)).index_add_(0, col, torch.ones(col.numel())).clamp(min=1)
        norm = deg.rsqrt()[row] * deg.rsqrt()[col]
        return torch.zeros_like(x).index_add_(0, col, x[row] * norm[:, None])


class BPRLoss(nn.Module):
    def __init__(self, lambda_reg=0.0):
        super().__init__()
        self.lambda_reg = lambda_reg

    def forward(self, positives, negatives, parameters):
        n_pairs = positives.size(0)
        log_prob = F.logsigmoid(positives - negatives).mean()
        regularization = self.lambda_reg * parameters.norm(p=2).pow(2)
        return (-log_prob + regularization) / n_pairs


class LightGCN(nn.Module):
    def __init__(self, num_nodes, dim, num_layers):
        super().__init__()
        self.embedding = nn.Embedding(num_nodes, dim)
        nn.init.xavier_uniform_(self.embedding.weight)
        self.convs = nn.ModuleList([LGConv() for _ in range(num_layers)])
        self.alpha = 1.0 / (num_layers + 1)

    def get_embedding(self, edge_index):
        x = self.embedding.weight
        out = x * self.alpha
        for conv in self.convs:
            x = conv(x, edge_index)
            out = out + x * self.alpha
        return out

    def forward(self, edge_index, edge_label_index):
        out = self.get_embedding(edge_index)
        return (out[edge_label_index[0]] * out[edge_label_index[1]]).sum(-1)

    def recommendation_loss(self, pos_rank, neg_rank, node_id, lambda_reg=1e-2):
        return BPRLoss(lambda_reg)(pos_rank, neg_rank, self.embedding.weight[node_id])


@torch.no_grad()
def recall_at_k(model, edge_index, train_edges, test_edges, k=10):
    emb = model.get_embedding(edge_index)
    score = emb[:USERS] @ emb[USERS:].T
    score[train_edges[:, 0], train_edges[:, 1]] = -1e9
    top = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    top.scatter_(1, score.topk(k, dim=1).indices, True)
    truth = torch.zeros(USERS, ITEMS, dtype=torch.bool)
    truth[test_edges[:, 0], test_edges[:, 1]] = True
    n = truth.sum(1)
    users = n > 0
    return ((top & truth).sum(1)[users] / n[users].clamp(max=k)).mean().item()


def main():
    train_edges, test_edges = make_graph()
    item_nodes = train_edges[:, 1] + USERS
    edge_index = torch.stack([torch.cat([train_edges[:, 0], item_nodes]),
                              torch.cat([item_nodes, train_edges[:, 0]])])
    model = LightGCN(USERS + ITEMS, DIM, LAYERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    print(f"{len(train_edges)} train edges, {len(test_edges)} test edges")
    for epoch in range(1, 16):
        total = 0.0
        batches = torch.randperm(len(train_edges)).split(512)
        for index in batches:
            pos = torch.stack([train_edges[index, 0], item_nodes[index]])
            neg = torch.stack([pos[0], torch.randint(USERS, USERS + ITEMS, (len(index),))])
            edge_label_index = torch.cat([pos, neg], dim=1)
            optimizer.zero_grad()
            pos_rank, neg_rank = model(edge_index, edge_label_index).chunk(2)
            loss = model.recommendation_loss(pos_rank, neg_rank, edge_label_index.unique())
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        if epoch % 3 == 0:
            recall = recall_at_k(model, edge_index, train_edges, test_edges)
            print(f"Epoch {epoch:02d} loss {total / len(train_edges):.5f} recall@10 {recall:.4f}")
    print("RESULT", 1 - recall_at_k(model, edge_index, train_edges, test_edges))


if __name__ == "__main__":
    main()
