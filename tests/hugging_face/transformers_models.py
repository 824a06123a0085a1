"""Makes and runs models with Hugging Face's transformers.

    transformers_models.py make MODEL_TYPE TOKENIZER_DIR DIR    saves a tiny model with fresh weights
    transformers_models.py continue DIR TOKENS PROMPT ...       continues prompts, always with the most likely token
    transformers_models.py adapter DIR ADAPTER TOKENS PROMPT ...    continues prompts with an adapter, in PEFT

`make transformers` runs these commands.
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def make(model_type, tokenizer, folder):
    torch.manual_seed(1)
    words = AutoTokenizer.from_pretrained(tokenizer)
    config = AutoConfig.for_model(
        model_type,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=len(words),
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=model_type == "qwen2",
        **SPECIAL,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:  # transformers initialises these to zeros and ones
                parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def continue_prompts(folder, tokens, *prompts):
    words = AutoTokenizer.from_pretrained(folder)
    model, loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {what: names for what, names in loaded.items() if names}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    print(json.dumps([continue_prompt(words, model, prompt, int(tokens)) for prompt in prompts]))


def continue_with_adapter(folder, adapter, tokens, *prompts):
    from peft import PeftModel

    words = AutoTokenizer.from_pretrained(adapter)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), adapter)
    print(json.dumps([continue_prompt(words, model, prompt, int(tokens)) for prompt in prompts]))


@torch.no_grad()
def continue_prompt(words, model, prompt, tokens):
    ids = words(prompt, return_tensors="pt").input_ids
    for _ in range(tokens):
        following = model(ids).logits[0, -1].argmax()
        if following == SPECIAL["eos_token_id"]:
            break
        ids = torch.cat([ids, following.view(1, 1)], dim=1)
    return words.decode(ids[0, 1:], skip_special_tokens=True)


{"make": make, "continue": continue_prompts, "adapter": continue_with_adapter}[sys.argv[1]](*sys.argv[2:])
