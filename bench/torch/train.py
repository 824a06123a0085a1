#!/usr/bin/env python3
"""Trains in PyTorch the model that Stagecoach trains in `make bench`.

    python3 train.py '{"config": {...}, ...}'   writes the model and the corpus from which both trainers start
    python3 train.py '{...}'                    trains; with RANK and WORLD_SIZE as one rank of a pipeline, of replicas,
                                                or of both

The argument is the JSON object that bench/src/training/contender.rs makes. Rank 0 appends a line to `metrics` after
each step: {"step": 1, "loss": 7.6, "gradientNorm": 0.9, "seconds": 1.2}."""

import contextlib
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
from torch.nn.parallel import DistributedDataParallel

from llama import Llama, read_batch, read_config, write_inputs


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def single(settings, config, ids, targets):
    """Prepares a replica of one process. Gradients accumulate over its microbatches. DistributedDataParallel averages
    them over the replicas in the backward pass of the last microbatch."""
    model = Llama(config)
    model.load(settings["folder"])
    replicas = settings["dataParallel"]
    forward = torch.compile(model) if settings["compile"] else model
    if replicas > 1:
        dist.init_process_group("gloo")
        forward = DistributedDataParallel(model, gradient_as_bucket_view=True)
        ids, targets = (tensor.chunk(replicas)[dist.get_rank()] for tensor in (ids, targets))
    count = settings["microbatches"] // replicas
    microbatches = list(zip(ids.chunk(count), targets.chunk(count)))
    bf16 = settings["precision"] == "BFloat16"

    def compute():
        total = 0.0
        for nth, (x, y) in enumerate(microbatches):
            accumulates = replicas > 1 and nth + 1 < count
            with forward.no_sync() if accumulates else contextlib.nullcontext():
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                    loss = cross_entropy(forward(x), y) / count
                loss.backward()
            total += loss.item()
        if replicas > 1:
            total = mean_over(None, total)
        return total

    return [model], compute, None


def mean_over(group, number):
    """Returns the mean of a number over the ranks of a group."""
    sum_of_all = torch.tensor([number])
    dist.all_reduce(sum_of_all, group=group)
    return sum_of_all.item() / dist.get_world_size(group)


def pipelined(settings, config, ids, targets):
    """Prepares a rank of torch.distributed.pipelining. The ranks are numbered replica by replica."""
    # The first step sends dummy tensors to the neighbouring stages. gloo can't send to a stage on the same rank, so
    # this line removes them.
    pipeline_stage._PipelineStageBase._get_init_p2p_neighbors_ops = lambda self: []
    dist.init_process_group("gloo")
    replicas = settings["dataParallel"]
    ranks = dist.get_world_size() // replicas
    replica, rank = divmod(dist.get_rank(), ranks)
    # new_group is collective: every process creates all groups
    pipelines = [dist.new_group([replica * ranks + rank for rank in range(ranks)]) for replica in range(replicas)]
    peers = [dist.new_group([replica * ranks + rank for replica in range(replicas)]) for rank in range(ranks)]
    pipeline = pipelines[replica]
    ids, targets = (tensor.chunk(replicas)[replica] for tensor in (ids, targets))
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
            module = model
            if replicas > 1:
                module = DistributedDataParallel(model, process_group=peers[rank], gradient_as_bucket_view=True)
            stages.append(pipelining.PipelineStage(module, chunk, len(split), torch.device("cpu"), group=pipeline))
    schedule_class = pipelining.schedules.get_schedule_class(name)
    several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    schedule = schedule_class(stages if several else stages[0], settings["microbatches"] // replicas, loss_fn=cross_entropy)
    assert several or chunks_per_rank == 1, f"{name} has one chunk a rank"
    has_loss = rank_of[-1] == rank

    def compute():
        losses = []
        inputs = (ids,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": targets, "losses": losses} if has_loss else {}))
        loss = torch.stack(losses).mean().reshape(1) if has_loss else torch.zeros(1)
        dist.broadcast(loss, replica * ranks + rank_of[-1], group=pipeline)
        return mean_over(peers[rank], loss.item()) if replicas > 1 else loss.item()

    return models, compute, pipeline


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
    is_pipelined = ranks > settings["dataParallel"]
    models, compute, pipeline = (pipelined if is_pipelined else single)(settings, config, ids, targets)
    groups = [group for model in models for group in model.parameter_groups(settings["weightDecay"])]
    parameters = [p for group in groups for p in group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=settings["learningRate"], fused=settings["fused"] or None)
    metrics = open(settings["metrics"], "a") if int(os.environ.get("RANK", "0")) == 0 else None
    for step in range(1, settings["steps"] + 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = compute()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        if is_pipelined:
            square = norm.square()
            dist.all_reduce(square, group=pipeline)
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
