"""Imitates the tokenizers of eight model families, and tokenises texts with them in Hugging Face's transformers.

    tokenizer_families.py DIR

The script makes a folder in DIR for each family. tokenizer.json and tokenizer_config.json have the family's normalizer,
pre-tokenizer, added tokens and settings, but a small vocabulary. config.json and generation_config.json have its
special ids. expected.json has the ids of 1,000 texts, with special tokens parsed and as text, and the ids that begin,
end and pad a text. `make transformers` runs the script.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

TEXTS = 1000
WORDS = "harbour lantern whisper Mountain orange isn't we'll 12 2024 x+=1; caf\u00e9 na\u00efve \u6f22\u5b57 \U0001f642 e\u0301 <s> </s> <pad>".split()
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", " \n", "\t", "\r\n", "\u3000", ""]
GPT_2_PATTERN = None
LLAMA_3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2_PATTERN = LLAMA_3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(pattern):
    tokenizer = Tokenizer(models.BPE())
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre_tokenizers.ByteLevel.alphabet()


def sentencepiece(prefix):
    """Returns a BPE with byte fallback, like a converted SentencePiece tokenizer, and no alphabet."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if prefix else replace
    return tokenizer, []


def trained(tokenizer, alphabet, special, words):
    """Trains a tokenizer whose vocabulary begins with `special`, `words` and, without an alphabet, all bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)] if not alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=special + words + bytes_, initial_alphabet=alphabet, show_progress=False
    )
    texts = [" ".join(WORDS[:14]) * 3, "\n".join(WORDS[:14])]
    tokenizer.train_from_iterator(texts, trainer)
    definition = json.loads(tokenizer.to_str())
    # `words` and bytes belong only to the vocabulary
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] in special]
    return Tokenizer.from_str(json.dumps(definition))


def family(name):
    """Returns the tokenizer, its configuration, and the special ids of config.json and generation_config.json."""
    post = None
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    model, generation, plain = {}, {}, []
    if name == "gpt2":
        tokenizer = trained(*byte_level(GPT_2_PATTERN), ["<|endoftext|>"], ["<s>", "</s>"])
        config |= {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
        model = {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"}
    elif name == "llama2":
        tokenizer = trained(*sentencepiece(True), ["<unk>", "<s>", "</s>"], [])
        config |= {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        model, post = {"bos_token_id": "<s>", "eos_token_id": "</s>"}, "<s>"
    elif name == "llama3":
        reserved = [f"<|reserved_special_token_{index}|>" for index in range(4)]
        names = ["<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        tokenizer = trained(*byte_level(LLAMA_3_PATTERN), names + reserved, ["<s>", "</s>"])
        config |= {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"}
        model = {"bos_token_id": "<|begin_of_text|>", "eos_token_id": ["<|end_of_text|>", "<|eot_id|>"]}
        post = "<|begin_of_text|>"
    elif name == "qwen3":
        tokenizer = trained(*byte_level(QWEN_2_PATTERN), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<s>", "</s>"])
        tokenizer.normalizer = normalizers.NFC()
        plain = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|fim_prefix|>"]
        config |= {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        model = {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|im_end|>"}
        generation = {"eos_token_id": ["<|im_end|>", "<|endoftext|>"]}
    elif name == "mistral":
        control = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
        tokenizer = trained(*sentencepiece(True), ["<unk>", "<s>", "</s>"] + control, [])
        config |= {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        model, post = {"bos_token_id": "<s>", "eos_token_id": "</s>"}, "<s>"
    elif name == "gemma":
        names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
        tokenizer = trained(*sentencepiece(False), names, [])
        plain = ["\n\n", "\n\n\n", "  ", "<table>"]
        config |= {"add_bos_token": True, "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
        model = {"bos_token_id": "<bos>", "eos_token_id": ["<eos>", "<end_of_turn>"], "pad_token_id": "<pad>"}
        post = "<bos>"
    elif name == "phi3":
        tokenizer = trained(*sentencepiece(True), ["<unk>", "<s>", "</s>", "<|endoftext|>"], [])
        turns = ["<|assistant|>", "<|system|>", "<|end|>", "<|user|>"]
        tokenizer.add_special_tokens([AddedToken(turn, rstrip=True, special=True, normalized=False) for turn in turns])
        tokenizer.add_tokens([AddedToken("<|raw|>", rstrip=True, normalized=False)])
        config |= {"add_bos_token": False, "bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": "<unk>"}
        model = {"bos_token_id": "<s>", "eos_token_id": "<|endoftext|>", "pad_token_id": "<|endoftext|>"}
        generation = {"eos_token_id": ["<|endoftext|>", "<|end|>"]}
    elif name == "deepseek":
        begin, end, pad = (f"<\uff5c{what}\uff5c>" for what in ("begin\u2581of\u2581sentence", "end\u2581of\u2581sentence", "\u2581pad\u2581"))
        tokenizer = trained(*byte_level(GPT_2_PATTERN), [begin, end, pad], ["<s>", "</s>"])
        plain = ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>"]
        token = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
        config |= {"add_bos_token": True, "bos_token": token | {"content": begin}, "eos_token": token | {"content": end}, "pad_token": token | {"content": end}}
        model, post = {"bos_token_id": begin, "eos_token_id": end}, begin
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in plain])
    if post:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{post} $A", pair=f"{post} $A {post}:1 $B:1", special_tokens=[(post, tokenizer.token_to_id(post))]
        )
    ids = lambda names: [tokenizer.token_to_id(one) for one in names] if isinstance(names, list) else tokenizer.token_to_id(names)
    model, generation = ({key: ids(value) for key, value in part.items()} for part in (model, generation))
    return tokenizer, config, model, generation


def texts(name, tokenizer):
    draw = random.Random(name)
    added = [token["content"] for token in json.loads(tokenizer.to_str())["added_tokens"]]
    for _ in range(TEXTS):
        parts = draw.choices(WORDS + added, weights=[4] * len(WORDS) + [2] * len(added), k=draw.randint(1, 40))
        yield "".join(part + draw.choice(SPACES) for part in parts)


def main(folder):
    for name in ["gpt2", "llama2", "llama3", "qwen3", "mistral", "gemma", "phi3", "deepseek"]:
        path = Path(folder, name)
        path.mkdir()
        tokenizer, config, model, generation = family(name)
        tokenizer.save(str(path / "tokenizer.json"))
        files = {"tokenizer_config.json": config, "config.json": model, "generation_config.json": generation}
        for file, content in files.items():
            (path / file).write_text(json.dumps(content))
        theirs = AutoTokenizer.from_pretrained(path)
        first = theirs("x").input_ids[0]
        cases = [
            {
                "text": text,
                "parsed": theirs(text, add_special_tokens=False).input_ids,
                "asText": theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids,
            }
            for text in texts(name, tokenizer)
        ]
        expected = {
            "bos": first if first == theirs.bos_token_id else None,
            "eos": theirs.eos_token_id,
            "pad": theirs.pad_token_id,
            "cases": cases,
        }
        (path / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(sys.argv[1])
