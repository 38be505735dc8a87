"""The second set: the networks, and the calls that must be excepted under each recipe.

`place` is the module whose own code makes the fault; an exception for it, for an operator in it or
for a module around it (not the whole network) finds the fault. A fault in the network's own
`forward` names its operators instead (only under fp16: under o2, the next operator of the same code
gets the result in half precision again, so that no exception helps). This data was written, and
verified by `verify.py`, before `advise` ran on any of these networks.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One planted fault: its class, where it is, and the recipes that it breaks."""

    kind: str
    place: str
    recipes: tuple[str, ...]


@dataclass(frozen=True)
class Net:
    """One network: `FILE:FUNCTION`, its batches, and its faults."""

    build: str
    batches: str
    faults: tuple[Fault, ...] = ()
    recipes: tuple[str, ...] = ("fp16", "o2")
    loss: str | None = None
    lr: float = 0.01

    @property
    def name(self) -> str:
        return self.build.replace(".py:", ":")


BOTH = ("fp16", "o2")
O2 = ("o2",)

FAULTY = (
    Net("cnn.py:EnergyNet", "images", (Fault("square", "energy", BOTH),)),
    Net("cnn.py:GroupNormNet", "images", (Fault("variance", "norm", ("fp16",)),)),
    Net("cnn.py:SpatialPoolNet", "images", (Fault("exp", "pool", O2),)),
    Net("cnn.py:ContrastNet", "images", (Fault("epsilon", "contrast", BOTH),)),
    Net("cnn.py:GrowingNet", "images", (Fault("growth", "trunk", BOTH),)),
    Net("vit.py:unscaled", "images", (Fault("logits", "blocks.1.attn", BOTH),)),
    Net(
        "vit.py:einsum",
        "images",
        (Fault("logits", "blocks.0.attn", BOTH), Fault("logits", "blocks.1.attn", BOTH)),
    ),
    Net(
        "vit.py:mask",
        "images",
        (Fault("mask", "blocks.0.attn", BOTH), Fault("mask", "blocks.1.attn", BOTH)),
    ),
    Net("vit.py:EmbeddingNet", "tokens", (Fault("square", "norm", O2),)),
    Net("vit.py:ProxyNet", "images", (Fault("cancel", "proxies", BOTH),)),
    Net("gru.py:ExpAttentionNet", "series", (Fault("exp", "attention", O2),)),
    Net("gru.py:CosineNet", "padded", (Fault("epsilon", "unit", O2),)),
    Net("gru.py:LogProbabilityNet", "series", (Fault("epsilon", "mix", O2),)),
    Net("gru.py:RateNet", "series", (Fault("backward", "rate", BOTH),)),
    Net("gru.py:KernelNet", "series", (Fault("small sum", "kernel", O2),)),
    Net("mlp.py:SoftplusNet", "table", (Fault("exp", "act", O2),)),
    Net("mlp.py:VarianceNet", "raw_table", (Fault("variance", "standardize", O2),)),
    Net(
        "mlp.py:StalledNet",
        "table",
        (Fault("stalled", "gain", ("half-bn32",)),),
        recipes=("half-bn32",),
        lr=0.1,
    ),
    Net(
        "mlp.py:PolynomialNet", "table", (Fault("square", "op:mul", ("fp16",)),), recipes=("fp16",)
    ),
    Net(
        "mlp.py:TwoFaultsNet",
        "table",
        (Fault("exp", "unit", O2), Fault("epsilon", "sparse", BOTH)),
    ),
    Net(
        "gnn.py:DegreeNet",
        "graphs",
        (Fault("epsilon", "layers.0", O2), Fault("epsilon", "layers.1", O2)),
    ),
    Net("gnn.py:AttentionNet", "graphs", (Fault("exp", "gat1", O2),)),
    Net("gnn.py:SumNet", "graphs", (Fault("sum", "aggregate", BOTH),)),
    Net("gnn.py:DistanceNet", "graphs", (Fault("square", "distances", BOTH),)),
)

SAFE = ("fp16", "o2", "bf16")
HEALTHY = (
    Net("healthy.py:batch_norm", "images", recipes=SAFE),
    Net("healthy.py:residual", "images", recipes=SAFE),
    Net("healthy.py:Gaussians", "table", recipes=SAFE),
    Net("healthy.py:scaled_attention", "images", recipes=SAFE),
    Net("healthy.py:small_mask", "images", recipes=SAFE),
    Net("healthy.py:HandSoftmaxNet", "series", recipes=SAFE),
    Net("healthy.py:Lstm", "series", recipes=SAFE),
    Net("healthy.py:StableSoftplusNet", "table", recipes=SAFE),
    Net("healthy.py:dropout", "table", recipes=SAFE),
    Net("healthy.py:ClampedMean", "graphs", recipes=SAFE),
    Net("healthy.py:BoundedSquares", "images", recipes=SAFE),
    Net("healthy.py:Cosine", "table", recipes=SAFE),
    Net("healthy.py:ScaledEmbedding", "tokens", recipes=SAFE),
    Net("healthy.py:SafeNorm", "table", recipes=SAFE),
    Net("healthy.py:plain", "table", recipes=SAFE, loss="healthy.py:summed"),
    Net("healthy.py:plain", "table", recipes=SAFE, loss="healthy.py:underflow"),
)
