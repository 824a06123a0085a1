#!/usr/bin/env python3
"""Trains tiny Llamas for five steps in plain PyTorch and records what a trainer must reproduce.

    pip install torch==2.11.0 safetensors transformers==5.23.0
    python3 tests/reference/reference.py

writes, beside this file, for each case CASE.safetensors (`initial.NAME`, `gradient.NAME` of the first step before
clipping, `final.NAME`) and, for all cases, reference.json (model, optimizer, data, and by step the learning rate, loss
and gradient norm). The script shares no code with the trainer. It computes the whole batch at once, with autograd and
with torch's AdamW, clipping and learning-rate schedulers. Attention is a plain softmax. Each document of a packed row
is a separate row. Mistral and Qwen are the models of transformers.

The script trains in float32, and again in float64 from the same weights. `float64` in the JSON has the losses and norms
in float64, and the distance of float32 from float64 (largest |a - b| / largest |b|, over tensors). A comparison with
float32 must allow this noise. `bfloat16` has the relative errors, against float64, of the same training with activations
and weights in bfloat16 and master weights in float32, in two orders of summation.
"""

import copy
import json
import math
import pathlib

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

HERE = pathlib.Path(__file__).parent
STEPS, ROWS, LENGTH, IGNORED = 5, 8, 12, -100


class RMSNorm(nn.Module):
    def __init__(self, hidden, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x):
        wide = at_least_float(x)
        normed = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + self.eps)
        return (normed * at_least_float(self.weight)).to(x.dtype)


def at_least_float(x):
    """Returns x in float32 if it is bfloat16. A model with bfloat16 activations computes some operations in float32."""
    return x.float() if x.dtype == torch.bfloat16 else x


def frequencies(dim, theta, scaling):
    """Returns the frequency of each pair, in radians per position. `scaling` is None or Llama 3's, which counts the
    turns of a pair within the model's original length. Pairs with fewer than `low_freq_factor` turns become `factor`
    times slower. Pairs with more than `high_freq_factor` turns do not change. Pairs between are interpolated linearly."""
    frequency = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if scaling is None:
        return frequency
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling["factor"])


def rope(x, theta, scaling):
    """Rotates x[rows, heads, length, dim] by position, in Hugging Face's layout: pair i is (x[i], x[i + dim/2])."""
    length, dim = x.shape[-2:]
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequencies(dim, theta, scaling)
    angle = torch.cat([angle, angle], dim=-1)
    first, second = x[..., : dim // 2], x[..., dim // 2 :]
    half_turned = at_least_float(torch.cat([-second, first], dim=-1))
    wide = at_least_float(x)
    return (wide * angle.cos().to(wide.dtype) + half_turned * angle.sin().to(wide.dtype)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        hidden, dim = c["hidden_size"], c["head_dim"]
        self.q_proj = nn.Linear(hidden, c["num_attention_heads"] * dim, bias=False)
        self.k_proj = nn.Linear(hidden, c["num_key_value_heads"] * dim, bias=False)
        self.v_proj = nn.Linear(hidden, c["num_key_value_heads"] * dim, bias=False)
        self.o_proj = nn.Linear(c["num_attention_heads"] * dim, hidden, bias=False)

    def forward(self, x):
        rows, length, _ = x.shape
        dim, theta, scaling = self.c["head_dim"], self.c["rope_theta"], self.c.get("rope_scaling")
        group = self.c["num_attention_heads"] // self.c["num_key_value_heads"]
        q, k, v = (p(x).view(rows, length, -1, dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rope(q, theta, scaling), rope(k, theta, scaling)
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        scores = at_least_float(q @ k.transpose(-1, -2)) / math.sqrt(dim)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1).to(x.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Module names are chosen so that `named_parameters` gives Hugging Face's names."""

    def __init__(self, c):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


def from_transformers(architecture, c):
    """Returns a model of transformers that is called like `Llama`."""
    plain = getattr(transformers, f"{architecture}ForCausalLM")

    class Model(plain):
        def forward(self, ids):
            return super().forward(input_ids=ids, use_cache=False).logits

    fields = {"sliding_window": None, **{name: value for name, value in c.items() if name != "model_type"}}
    return Model(getattr(transformers, f"{architecture}Config")(**fields, attn_implementation="eager"))


def config(**changed):
    return {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "vocab_size": 96,
        "max_position_embeddings": 16,
        "rope_theta": 100.0,  # few positions: with this base, the slow pairs turn too
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        **changed,
    }


# The number of tokens of each row. With four microbatches, rows 4 and 5 are a microbatch of padding only.
PADDED = [12, 7, 1, 12, 0, 0, 5, 12]
# The number of tokens of each document of each row. Attention stays inside a document. In a row with several documents,
# the last token of each has no target.
PACKED = [[5, 7], [12], [3, 6, 3], [2, 10], [1, 11], [12], [4, 4, 4], [8, 2]]

CASES = {
    "padded": {"config": config(), "rows": [[n] if n else [] for n in PADDED], "clip": 3.5},
    "tied": {
        "config": config(head_dim=12, tie_word_embeddings=True),
        "rows": [[n] if n else [] for n in PADDED],
        "clip": 3.5,
    },
    "packed": {
        "config": config(hidden_size=16, num_hidden_layers=3, num_key_value_heads=1, head_dim=4, intermediate_size=24),
        "rows": PACKED,
        "clip": 1.6,
    },
    # with these values, one pair keeps its frequency, two pairs become slower, and one pair becomes 8 times slower
    "llama3": {
        "config": config(
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        ),
        "rows": [[n] if n else [] for n in PADDED],
        "clip": 3.5,
    },
}
# The models of transformers. Stagecoach reads a Mistral as a Llama.
for architecture, changed in [
    ("Qwen2", {"model_type": "qwen2", "tie_word_embeddings": True}),
    ("Qwen3", {"model_type": "qwen3", "head_dim": 12}),
    ("Mistral", {}),
]:
    CASES[architecture.lower()] = {**CASES["padded"], "config": config(**changed), "transformers": architecture}
# The numbers of parts in which a batch is computed in bfloat16: the whole batch at once, and each row separately. The
# order of the sums over a batch changes the result in bfloat16.
BFLOAT16_PARTS = [1, 8]
OPTIMIZER = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-5, "weight_decay": 0.1}
RATE = {"peak": 5e-3, "floor": 1e-3, "warmup_steps": 2, "warmup_start": 0.1, "decay_steps": 5}


def draw_rows(lengths, vocabulary, generator):
    """Returns the rows of a batch: `inputs`, `targets`, and the offsets, except 0, at which documents start."""
    rows = []
    for documents in lengths:
        inputs, targets, starts = [], [], []
        for n in documents:
            ids = torch.randint(vocabulary, (n + 1,), generator=generator).tolist()
            starts.append(len(inputs))
            inputs += ids[:-1]
            targets += ids[1:]
            if len(documents) > 1:
                targets[-1] = IGNORED
        rows.append({"inputs": inputs, "targets": targets, "documents": starts[1:]})
    return rows


def one_row_a_document(rows):
    """Returns (ids, targets), padded to LENGTH, with each document in a separate row."""
    ids, targets = [], []
    for row in rows:
        cuts = [0, *row["documents"], len(row["inputs"])]
        for start, end in zip(cuts, cuts[1:]):
            padding = LENGTH - (end - start)
            ids.append(row["inputs"][start:end] + [0] * padding)
            targets.append(row["targets"][start:end] + [IGNORED] * padding)
    return torch.tensor(ids), torch.tensor(targets)


def logits_in_bfloat16(model, ids):
    """Returns the logits of the model with its weights rounded to bfloat16. The activations are bfloat16 too. The
    gradients of the float32 weights are rounded to bfloat16 in the backward pass."""
    rounded = {name: p.bfloat16() for name, p in model.named_parameters()}
    return torch.func.functional_call(model, rounded, ids).float()


def train(model, batches, clip, logits=nn.Module.__call__, parts=1):
    """Returns rates, losses and norms of all steps, and the first gradients. Each batch is computed in `parts` parts."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    is_undecayed = lambda name: any(part in name for part in ("norm", "embed", "bias"))
    undecayed = [p for name, p in named.items() if is_undecayed(name)]
    decayed = [p for name, p in named.items() if not is_undecayed(name)]
    groups = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}]
    betas = (OPTIMIZER["beta1"], OPTIMIZER["beta2"])
    optimizer = torch.optim.AdamW(
        groups, lr=RATE["peak"], betas=betas, eps=OPTIMIZER["epsilon"], weight_decay=OPTIMIZER["weight_decay"]
    )
    warmup = RATE["warmup_steps"]
    rising = LinearLR(optimizer, start_factor=RATE["warmup_start"], total_iters=warmup)
    falling = CosineAnnealingLR(optimizer, T_max=RATE["decay_steps"] - warmup, eta_min=RATE["floor"])
    schedule = SequentialLR(optimizer, [rising, falling], milestones=[warmup])
    rates, losses, norms, first = [], [], [], None
    for rows in batches:
        ids, targets = one_row_a_document(rows)
        optimizer.zero_grad()
        loss, count = 0.0, (targets != IGNORED).sum()
        for part_ids, part_targets in zip(ids.chunk(parts), targets.chunk(parts)):
            out = logits(model, part_ids).flatten(0, 1)
            part = F.cross_entropy(out, part_targets.flatten(), ignore_index=IGNORED, reduction="sum") / count
            part.backward()
            loss += part.detach()
        first = first or {name: p.grad.clone() for name, p in named.items()}
        norms.append(nn.utils.clip_grad_norm_(named.values(), clip).item())
        rates.append(optimizer.param_groups[0]["lr"])
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
    return {"learning_rates": rates, "losses": losses, "norms": norms}, first


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def distance(ours, exact):
    """Returns the largest |a - b| / largest |b| of the worst tensor."""
    return max(((ours[n].double() - exact[n]).abs().max() / exact[n].abs().max()).item() for n in exact)


def relative_error(ours, exact):
    """Returns |a - b| / |b|, with all tensors as one vector."""
    difference = sum((ours[n].double() - exact[n]).square().sum() for n in exact)
    return (difference / sum(exact[n].square().sum() for n in exact)).sqrt().item()


def compute(name, seed):
    case = CASES[name]
    generator = torch.Generator().manual_seed(seed)
    c = case["config"]
    model = from_transformers(case["transformers"], c) if "transformers" in case else Llama(c)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * drawn if "norm" in parameter_name else 0.2 * drawn)
    batches = [draw_rows(case["rows"], case["config"]["vocab_size"], generator) for _ in range(STEPS)]

    initial, double = values(model), copy.deepcopy(model).double()
    rounded = {parts: copy.deepcopy(model) for parts in BFLOAT16_PARTS}
    record, gradients = train(model, batches, case["clip"])
    exact, exact_gradients = train(double, batches, case["clip"])
    tensors = {f"initial.{n}": t for n, t in initial.items()}
    tensors |= {f"gradient.{n}": t for n, t in gradients.items()}
    tensors |= {f"final.{n}": t for n, t in values(model).items()}
    save_file(tensors, HERE / f"{name}.safetensors", metadata={"format": "pt"})
    float64 = {
        "losses": exact["losses"],
        "norms": exact["norms"],
        "gradient_distance": distance(gradients, exact_gradients),
        "final_distance": distance(values(model), values(double)),
    }
    bfloat16 = []
    for parts, model in rounded.items():
        trained, gradients = train(model, batches, case["clip"], logits_in_bfloat16, parts)
        loss_errors = [abs(a / b - 1) for a, b in zip(trained["losses"], exact["losses"])]
        bfloat16.append(
            {
                "parts": parts,
                "loss_error": max(loss_errors),
                "gradient_error": relative_error(gradients, exact_gradients),
                "final_error": relative_error(values(model), values(double)),
            }
        )
    return {
        "config": case["config"],
        "clip": case["clip"],
        **record,
        "float64": float64,
        "bfloat16": bfloat16,
        "batches": batches,
    }


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    cases = {name: compute(name, seed) for seed, name in enumerate(CASES, start=1)}
    document = {"torch": torch.__version__.split("+")[0], "optimizer": OPTIMIZER, "learning_rate": RATE, "cases": cases}
    (HERE / "reference.json").write_text(json.dumps(document) + "\n")
    for name, case in cases.items():
        print(name, *(f"{key} {case[key]}" for key in ("losses", "norms", "learning_rates")), case["float64"], *case["bfloat16"], sep="\n  ")


if __name__ == "__main__":
    main()
