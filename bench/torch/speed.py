#!/usr/bin/env python3
"""Trains a Llama in PyTorch for the comparison of `make gpu`: with random weights and tokens, bf16 by autocast, fp32
weights and a fused AdamW. The argument is the JSON object that bench/src/gpu/torch.rs makes. Prints the seconds of each
step as JSON."""

import json
import sys
import time

import torch
import torch.nn.functional as F

from llama import Llama


def main():
    settings = json.loads(sys.argv[1])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config, rows, length = settings["config"], settings["rows"], settings["length"]
    torch.manual_seed(0)
    with torch.device(device):
        model = Llama(config)
        ids = torch.randint(0, config["vocab_size"], (rows, length + 1))
    optimizer = torch.optim.AdamW(model.parameter_groups(0.1), lr=1e-4, fused=True)
    forward = torch.compile(model) if settings["compile"] else model
    seconds = []
    for _ in range(settings["steps"]):
        begin = time.perf_counter()
        optimizer.zero_grad()
        losses = []
        for microbatch in ids.chunk(settings["microbatches"]):
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = forward(microbatch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), microbatch[:, 1:].flatten()) / settings["microbatches"]
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.stack(losses).sum().item()  # waits for the device
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"torch": torch.__version__, "device": device, "seconds": seconds}))


main()
