#!/usr/bin/env python3
"""The peer that `make bench` measures: PyTorch's own way to train what the job trains.

    python3 train.py '{"config": {...}, ...}'   writes the model and the corpus that both trainers start from
    python3 train.py '{...}'                    trains; with RANK and WORLD_SIZE one rank of a pipeline

The argument is the JSON object that bench/src/training/contender.rs makes. Rank 0 appends a line to `metrics` after each
step: {"step": 1, "loss": 7.6, "gradientNorm": 0.9, "seconds": 1.2}."""

import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import pipelining
from torch.distributed.pipelining import stage as pipeline_stage

from llama import Llama, read_batch, read_config, write_inputs


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def single(settings, config, ids, targets):
    """One process: gradients accumulate over the microbatches."""
    model = Llama(config)
    model.load(settings["folder"])
    forward = torch.compile(model) if settings["compile"] else model
    microbatches = list(zip(ids.chunk(settings["microbatches"]), targets.chunk(settings["microbatches"])))
    bf16 = settings["precision"] == "BFloat16"

    def compute():
        total = 0.0
        for x, y in microbatches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = cross_entropy(forward(x), y) / len(microbatches)
            loss.backward()
            total += loss.item()
        return total

    return [model], compute


def pipelined(settings, config, ids, targets):
    """A rank of torch.distributed.pipelining."""
    # Its first exchange of shapes sends to itself, which gloo can't; the receive buffers come with the first step.
    pipeline_stage._PipelineStageBase._get_init_p2p_neighbors_ops = lambda self: []
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    split, name = settings["split"], settings["schedule"]
    chunks_per_rank = len(split) // ranks
    v_shaped = name == "ZBVZeroBubble"
    rank_of = [min(c, len(split) - 1 - c) if v_shaped else c % ranks for c in range(len(split))]
    models, stages = [], []
    for chunk, owner in enumerate(rank_of):
        if owner == rank:
            first = sum(split[:chunk])
            model = Llama(config, first, first + split[chunk])
            model.load(settings["folder"])
            models.append(model)
            stages.append(pipelining.PipelineStage(model, chunk, len(split), torch.device("cpu")))
    schedule_class = pipelining.schedules.get_schedule_class(name)
    several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    schedule = schedule_class(stages if several else stages[0], settings["microbatches"], loss_fn=cross_entropy)
    assert several or chunks_per_rank == 1, f"{name} has one chunk a rank"
    has_loss = rank_of[-1] == rank

    def compute():
        losses = []
        inputs = (ids,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": targets, "losses": losses} if has_loss else {}))
        loss = torch.stack(losses).mean().reshape(1) if has_loss else torch.zeros(1)
        dist.broadcast(loss, rank_of[-1])
        return loss.item()

    return models, compute


def main():
    started = time.perf_counter()
    settings = json.loads(sys.argv[1])
    folder = settings["folder"] = pathlib.Path(settings["folder"])
    sequences, length = settings["sequences"], settings["length"]
    if "config" in settings:
        write_inputs(folder, settings["config"], sequences, length)
        return
    torch.set_num_threads(settings["threads"])
    config = read_config(folder)
    ids, targets = read_batch(folder, sequences, length)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    models, compute = (pipelined if ranks > 1 else single)(settings, config, ids, targets)
    groups = [group for model in models for group in model.parameter_groups(settings["weightDecay"])]
    parameters = [p for group in groups for p in group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=settings["learningRate"], fused=settings["fused"] or None)
    metrics = open(settings["metrics"], "a") if int(os.environ.get("RANK", "0")) == 0 else None
    for step in range(1, settings["steps"] + 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = compute()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        if ranks > 1:
            square = norm.square()
            dist.all_reduce(square)
            norm = square.sqrt()
        torch.nn.utils.clip_grads_with_norm_(parameters, settings["clipNorm"], norm)
        optimizer.step()
        if ranks > 1:
            dist.barrier()
        if metrics:
            seconds = time.perf_counter() - begin
            line = {"step": step, "loss": loss, "gradientNorm": norm.item(), "seconds": seconds}
            print(json.dumps(line), file=metrics, flush=True)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    print(f"{time.perf_counter() - started:.1f} s", file=sys.stderr)


main()
