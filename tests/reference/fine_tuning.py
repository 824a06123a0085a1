#!/usr/bin/env python3
"""Trains tiny models, parts of them, and adapters of Hugging Face's PEFT, and records what a trainer must reproduce.

    pip install torch==2.11.0 safetensors transformers==5.23.0 peft==0.21.2
    python3 tests/reference/fine_tuning.py

writes, beside this file, for each case CASE.safetensors (`initial.NAME` of every weight, `gradient.NAME` of the
first step before clipping and `final.NAME` of the trained weights) and fine_tuning.json, with the fields of
reference.json. PEFT makes the adapters, and transformers the models. The script trains twenty steps in float32, and
again in float64.
"""

import copy
import fnmatch
import json

import peft
import torch
from safetensors.torch import save_file

import reference
from reference import HERE, PADDED, config, distance, draw_rows, from_transformers

STEPS = 20
reference.RATE = {"peak": 5e-3, "floor": 1e-3, "warmup_steps": 2, "warmup_start": 0.1, "decay_steps": STEPS}
ROWS = [[n] if n else [] for n in PADDED]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CASES = {
    "lora-llama": {"transformers": "Llama", "config": config(), "lora": {"rank": 4, "alpha": 6.0}},
    "lora-mistral": {
        "transformers": "Mistral",
        "config": config(),
        "lora": {"rank": 3, "alpha": 8.0, "targets": ["k_proj", "down_proj", "up_proj"]},
    },
    "lora-qwen2": {
        "transformers": "Qwen2",
        "config": config(model_type="qwen2", tie_word_embeddings=True),
        "lora": {"rank": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"], "useRslora": True},
    },
    "lora-qwen3": {"transformers": "Qwen3", "config": config(model_type="qwen3", head_dim=12), "lora": {"rank": 2, "alpha": 2.0}},
    "full-llama": {"transformers": "Llama", "config": config()},
    "full-mistral": {"transformers": "Mistral", "config": config()},
    "full-qwen2": {"transformers": "Qwen2", "config": config(model_type="qwen2", tie_word_embeddings=True)},
    "full-qwen3": {"transformers": "Qwen3", "config": config(model_type="qwen3", head_dim=12)},
    "freeze": {
        "transformers": "Qwen2",
        "config": config(model_type="qwen2"),
        "freeze": ["model.embed_tokens.*", "*.layers.0.*", "*.k_proj.*", "model.norm.weight", "lm_head.*"],
    },
    "freeze-tied": {
        "transformers": "Llama",
        "config": config(tie_word_embeddings=True),
        "freeze": ["model.embed_tokens.*", "*.gate_proj.*"],
    },
}


def plain_name(name):
    """Returns the name in a checkpoint: Hugging Face's name of a weight, or the name in PEFT's file of an adapter."""
    if "lora_" in name:
        return name.replace(".default.", ".")
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def trained(model):
    return {plain_name(name): p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def compute(case, seed):
    generator = torch.Generator().manual_seed(seed)
    model = from_transformers(case["transformers"], case["config"])
    if "lora" in case:
        lora = case["lora"]
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=lora["rank"],
                lora_alpha=lora["alpha"],
                target_modules=lora.get("targets", ALL),
                use_rslora=lora.get("useRslora", False),
                task_type=None,
            ),
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * drawn if "norm" in name else 0.2 * drawn)
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in case.get("freeze", [])):
                parameter.requires_grad = False
    batches = [draw_rows(ROWS, case["config"]["vocab_size"], generator) for _ in range(STEPS)]
    tensors = {f"initial.{plain_name(n)}": p.detach().clone() for n, p in model.named_parameters()}
    double = copy.deepcopy(model).double()
    record, gradients = reference.train(model, batches, 3.5)
    exact, exact_gradients = reference.train(double, batches, 3.5)
    tensors |= {f"gradient.{plain_name(n)}": t for n, t in gradients.items()}
    tensors |= {f"final.{n}": t for n, t in trained(model).items()}
    float64 = {
        "losses": exact["losses"],
        "norms": exact["norms"],
        "loss_distance": max(abs(a / b - 1) for a, b in zip(record["losses"], exact["losses"])),
        "gradient_distance": distance(gradients, exact_gradients),
        "final_distance": distance(trained(model), trained(double)),
    }
    part = {key: case[key] for key in ("lora", "freeze") if key in case}
    return tensors, {
        "config": case["config"], "clip": 3.5, **part, **record, "float64": float64, "bfloat16": [], "batches": batches,
    }


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    cases = {}
    for seed, (name, case) in enumerate(CASES.items(), start=101):
        tensors, cases[name] = compute(case, seed)
        save_file(tensors, HERE / f"{name}.safetensors", metadata={"format": "pt"})
        print(name, cases[name]["losses"], cases[name]["float64"], sep="\n  ")
    versions = {"torch": torch.__version__.split("+")[0], "peft": peft.__version__}
    document = {**versions, "optimizer": reference.OPTIMIZER, "learning_rate": reference.RATE, "cases": cases}
    (HERE / "fine_tuning.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
