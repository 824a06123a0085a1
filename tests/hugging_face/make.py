"""Makes tiny-llama/, a Llama in the files of Hugging Face's tools, with only `safetensors` and `numpy`.

    pip install 'safetensors>=0.8' numpy && python3 make.py

The model has two shards and an index. The first shard is BF16 and the second F32, as in a model whose parts were saved
separately. The tokenizer is a byte-level BPE with a few merges for the tests' corpus. Each run writes the same bytes.
"""

import json
from pathlib import Path

import numpy as np
from safetensors import TensorSpec, serialize_file

FOLDER = Path(__file__).parent / "tiny-llama"
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 16, 2, 4, 2, 24
SPECIAL = ["[BOT]", "[EOT]", "[PAD]"]
SYLLABLES = ["ka", "lo", "mi", "ren", "su", "tal", "vo", "wen", "xi", "yor", "zu", "be"]


def tokenizer():
    # the printable characters that GPT-2 uses for bytes
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = printable + [256 + i for i in range(256 - len(printable))]
    vocabulary = SPECIAL + [chr(code) for code in sorted(alphabet)]
    merges = []
    for syllable in SYLLABLES:
        left = syllable[0]
        for right in syllable[1:]:
            if [left, right] not in merges:
                merges.append([left, right])
                vocabulary.append(left + right)
            left += right
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    begin = {"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, **token} for i, name in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, text("A", 0)],
            "pair": [begin, text("A", 0), text("B", 1)],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [0], "tokens": [SPECIAL[0]]}},
        },
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: i for i, name in enumerate(vocabulary)},
            "merges": merges,
        },
    }


def shapes(vocabulary):
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (vocabulary, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        yield at + "self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield at + "self_attn.k_proj.weight", (kv, HIDDEN)
        yield at + "self_attn.v_proj.weight", (kv, HIDDEN)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield at + "mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (vocabulary, HIDDEN)


def values(draws, name, shape, half):
    centre = 1 if "norm" in name else 0
    drawn = (centre + draws.normal(0, 0.1, shape)).astype("<f4")
    # BF16 is the upper half of an F32
    return (drawn.view("<u4") >> 16).astype("<u2") if half else drawn


def save(tensors, half, path):
    kind = "bfloat16" if half else "float32"
    spec = lambda v: TensorSpec(dtype=kind, shape=list(v.shape), data_ptr=v.ctypes.data, data_len=v.nbytes)
    serialize_file({name: spec(v) for name, v in tensors.items()}, path, {"format": "pt"})


def write(name, content):
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (FOLDER / name).write_text(text + "\n", encoding="utf-8")


def main():
    FOLDER.mkdir(exist_ok=True)
    words = tokenizer()
    vocabulary = len(words["model"]["vocab"])
    write("tokenizer.json", words)
    write(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **dict(zip(["bos_token", "eos_token", "pad_token"], SPECIAL)),
        },
    )
    write(
        "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "head_dim": None,
            "hidden_act": "silu",
            "hidden_size": HIDDEN,
            "initializer_range": 0.02,
            "intermediate_size": INTERMEDIATE,
            "max_position_embeddings": 64,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": vocabulary,
        },
    )
    draws = np.random.default_rng(7)
    shards = [{}, {}]
    for name, shape in shapes(vocabulary):
        second = name.startswith("model.layers.1.") or name == "model.norm.weight"
        shards[second][name] = values(draws, name, shape, not second)
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save(shard, number == 1, FOLDER / file)
        weight_map |= {name: file for name in shard}
        total += sum(v.nbytes for v in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write("model.safetensors.index.json", index)


main()
