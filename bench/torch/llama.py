"""A Llama in plain PyTorch, and the files from which both trainers start: a Hugging Face model directory and a corpus
of token ids."""

import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

# The tokens with the ids 0 and 1. The corpus contains neither of them, so it is one document. The tokenizer has no
# token for the beginning of a text, so the trainers put none before the corpus.
SPECIAL_TOKENS = ["[EOT]", "[PAD]"]


def rotary_tables(c):
    """Returns cos and sin of each position, `[positions, head_dim]`, in Hugging Face's layout.
    Pair i is (x[i], x[i + dim/2])."""
    dim = c["hidden_size"] // c["num_attention_heads"]
    frequency = c["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(c["max_position_embeddings"], dtype=torch.float64)[:, None] * torch.cat([frequency, frequency])
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """Applies the rotary embedding to x `[rows, heads, length, head_dim]`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], dim=-1) * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden = c["hidden_size"]
        self.head_dim = hidden // c["num_attention_heads"]
        kv = c["num_key_value_heads"] * self.head_dim
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, kv, bias=False)
        self.v_proj = nn.Linear(hidden, kv, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (p(x).view(rows, length, -1, self.head_dim).transpose(1, 2) for p in projections)
        q, k = rotate(q, cos[:length], sin[:length]), rotate(k, cos[:length], sin[:length])
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Layers [first, last) of a Llama. It has the embedding if it has the first layer, and the head if it has the last
    layer. Parameters have Hugging Face's names without the prefix `model.` (see `file_name`)."""

    def __init__(self, c, first=0, last=None):
        super().__init__()
        count = c["num_hidden_layers"]
        last = count if last is None else last
        if first == 0:
            self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleDict({str(i): Layer(c) for i in range(first, last)})
        if last == count:
            self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
            self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        cos, sin = rotary_tables(c)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        if hasattr(self, "embed_tokens"):
            x = self.embed_tokens(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x)) if hasattr(self, "lm_head") else x

    def file_name(self, name):
        """Returns the name of a parameter in the model's file."""
        return name if name.startswith("lm_head") else f"model.{name}"

    def load(self, folder):
        weights = load_file(folder / "model/model.safetensors")
        self.load_state_dict({name: weights[self.file_name(name)] for name, _ in self.named_parameters()})

    def parameter_groups(self, weight_decay):
        """Returns two parameter groups. Norms and embeddings have no weight decay."""
        named = list(self.named_parameters())
        undecayed = [p for name, p in named if "norm" in name or "embed" in name]
        decayed = [p for name, p in named if not ("norm" in name or "embed" in name)]
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]


def write_inputs(folder, config, sequences, length):
    """Writes `model/` (weights, config.json, tokenizer.json) and `corpus/ids.u16` (all sequences, and one more id)."""
    generator = torch.Generator().manual_seed(0)
    model = Llama(config)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.02, generator=generator)
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "corpus").mkdir(exist_ok=True)
    weights = {model.file_name(name): p.detach() for name, p in model.named_parameters()}
    save_file(weights, folder / "model/model.safetensors", metadata={"format": "pt"})
    hugging_face = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **config}
    (folder / "model/config.json").write_text(json.dumps(hugging_face))
    vocabulary = SPECIAL_TOKENS + [str(i) for i in range(len(SPECIAL_TOKENS), config["vocab_size"])]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **special} for i, token in enumerate(SPECIAL_TOKENS)],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {t: i for i, t in enumerate(vocabulary)}, "unk_token": "[PAD]"},
    }
    (folder / "model/tokenizer.json").write_text(json.dumps(tokenizer))
    ids = torch.randint(len(SPECIAL_TOKENS), config["vocab_size"], (sequences * length + 1,), generator=generator)
    (folder / "corpus/ids.u16").write_bytes(ids.to(torch.uint16).numpy().tobytes())


def read_batch(folder, sequences, length):
    """Returns inputs and targets, `[sequences, length]`."""
    data = bytearray((folder / "corpus/ids.u16").read_bytes())
    ids = torch.frombuffer(data, dtype=torch.uint16).long()
    return ids[: sequences * length].view(sequences, length), ids[1 : sequences * length + 1].view(sequences, length)


def read_config(folder):
    return json.loads((pathlib.Path(folder) / "model/config.json").read_text())
