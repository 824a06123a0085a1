"""Writes the ids and masks that Hugging Face's transformers makes of random conversations with chat templates.

    chat_templates.py DIR

Each folder in DIR has a tokenizer.json, a template.jinja with {% generation %} blocks, and a settings.json: the date,
the special tokens by name, and the roles and the features of messages. The script adds expected.json with random
conversations, none of which contains a special token. Each conversation has the ids, the mask of the assistant's
tokens, whether a token crosses the border of a block, and the ids of the prompt for the next turn, or else the message
of an exception. In 200 conversations, the assistant has tokens and no token crosses a border. `make transformers` runs
the script.
"""

import datetime
import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

CONVERSATIONS = 200
WORDS = (
    "Hello world the you user assistant im_ end INST isn't we'll 2024 3.14 x+=1; caf\u00e9 na\u00efve \u6f22\u5b57 "
    "\U0001f642 e\u0301 \u00e9 <| |> < > [/ ] </ s> {{ {% %} \" \\ ' \u001c <think> </think> <tool_call> ##"
).split(" ")
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", " \n", "\t", "\r\n", "\u3000", "", "", ""]


def text(choose):
    pieces = [word for _ in range(choose.choice([0, 1, 2, 3, 5, 9])) for word in (choose.choice(WORDS), choose.choice(SPACES))]
    return "".join([choose.choice(SPACES)] * choose.choice([0, 0, 1]) + pieces)


def value(choose, depth=0):
    kinds = ["text", "integer", "float", "other"] + ["list", "object"] * (depth < 3)
    match choose.choice(kinds):
        case "text":
            return text(choose)
        case "integer":
            return choose.choice([0, -1, 7, 10**12, 2**53 + 1])
        case "float":
            return choose.choice([0.0, 0.1, -2.5, 1e16, 1e-5, 1.5e300, 123456.789])
        case "other":
            return choose.choice([None, True, False])
        case "list":
            return [value(choose, depth + 1) for _ in range(choose.randrange(4))]
        case _:
            return {choose.choice(["b", "a", "c d", "\u00e9", "name"]): value(choose, depth + 1) for _ in range(choose.randrange(4))}


def message(choose, role, features):
    made = {"role": role, "content": text(choose)}
    if "parts" in features and choose.random() < 0.3:
        made["content"] = [{"type": "text", "text": text(choose)} for _ in range(choose.randrange(1, 4))]
    if role == "assistant" and "calls" in features and choose.random() < 0.3:
        function = {"name": choose.choice(["sum", "look_up"]), "arguments": {"x": value(choose), "y": value(choose)}}
        made["tool_calls"] = [{"type": "function", "function": function} for _ in range(choose.choice([1, 1, 2]))]
        made["content"] = choose.choice([None, made["content"]])
    if role == "assistant" and "thoughts" in features and choose.random() < 0.5:
        if choose.random() < 0.5:
            made[choose.choice(["reasoning_content", "reasoning", "thinking"])] = text(choose)
        else:
            made["content"] = f"<think>\n{text(choose)}\n</think>\n\n{text(choose)}"
    # rows of tables have null where a message lacks a field
    for name in ["name", "tool_calls", "thinking"]:
        if name not in made and choose.random() < 0.1:
            made[name] = None
    return made


def record(choose, roles, features):
    system = ["system"] * (choose.random() < 0.3)
    if choose.random() < 0.8:
        turns = ["user", "assistant"] * choose.randrange(1, 4) + ["user"] * (choose.random() < 0.2)
    else:
        turns = [choose.choice(roles) for _ in range(choose.randrange(1, 6))]
    made = {"messages": [message(choose, role, features) for role in system + turns]}
    if "calls" in features and choose.random() < 0.5:
        made["tools"] = [{"type": "function", "function": {"name": "sum", "parameters": value(choose)}} for _ in range(choose.randrange(3))]
    return made


def crosses(offsets, border):
    return any(start < border < end for start, end in offsets)


def expected(tokenizer, plain, made):
    arguments = {"conversation": made["messages"], "tools": made.get("tools")}
    # apply_chat_template also renders messages without the fields that are None
    messages = [{name: value for name, value in message.items() if value is not None} for message in made["messages"]]
    try:
        whole = tokenizer.apply_chat_template(**arguments, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        prompt = tokenizer.apply_chat_template(**arguments, tokenize=True, return_dict=True, add_generation_prompt=True)
        [rendered], [spans] = chat_template_utils.render_jinja_template(
            [messages], tools=made.get("tools"), chat_template=tokenizer.chat_template, return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map,
        )
    except Exception as error:
        return {"record": made, "error": f"{type(error).__name__}: {error}"}
    encoding = plain.encode(rendered, add_special_tokens=False)
    assert encoding.ids == whole["input_ids"]
    return {
        "record": made, "ids": whole["input_ids"], "mask": whole["assistant_masks"], "prompt": prompt["input_ids"],
        "crosses": any(crosses(encoding.offsets, border) for span in spans if span[0] < span[1] for border in span),
    }


def main():
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        settings = json.loads((folder / "settings.json").read_text())
        today = datetime.datetime.fromisoformat(settings["date"])

        class Fixed(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return today

        chat_template_utils.datetime = Fixed
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **settings["named"])
        tokenizer.chat_template = (folder / "template.jinja").read_text()
        # without a post-processor, the offsets of a token include its white space
        definition = json.loads((folder / "tokenizer.json").read_text())
        plain = Tokenizer.from_str(json.dumps({**definition, "post_processor": None}))
        special = [token["content"] for token in definition["added_tokens"] if token["special"]]
        choose = random.Random(f"conversations of {folder.name}")
        cases, comparable = [], 0
        while comparable < CONVERSATIONS:
            made = record(choose, settings["roles"], settings["features"])
            if not any(token in json.dumps(made, ensure_ascii=False) for token in special):
                cases.append(expected(tokenizer, plain, made))
                comparable += "ids" in cases[-1] and any(cases[-1]["mask"]) and not cases[-1]["crosses"]
        (folder / "expected.json").write_text(json.dumps(cases))


main()
