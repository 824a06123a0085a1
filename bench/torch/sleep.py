#!/usr/bin/env python3
"""Runs one rank of PyTorch's pipeline runtime with a model that sleeps. Rank 0 prints as JSON, for each step, the
seconds of the step and the seconds that each rank slept. The argument is the JSON object that bench/src/sleep/mod.rs
makes."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import stage as pipeline_stage

HIDDEN = 8
slept = 0.0


def sleep(seconds):
    global slept
    begin = time.perf_counter()
    time.sleep(seconds)
    slept += time.perf_counter() - begin


class SleepInput(torch.autograd.Function):
    """Sleeps in the forward pass (F) and in the backward pass of the input (I)."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        sleep(ctx.seconds)
        return dy, None


class SleepWeight(torch.autograd.Function):
    """Sleeps in the backward pass of the weight (W)."""

    @staticmethod
    def forward(ctx, weight, seconds):
        ctx.seconds = seconds
        return weight.clone()

    @staticmethod
    def backward(ctx, dy):
        sleep(ctx.seconds)
        return dy, None


class Chunk(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, x):
        return SleepInput.apply(x, self.seconds) + SleepWeight.apply(self.weight, self.seconds)


def main():
    global slept
    settings = json.loads(sys.argv[1])
    # the first step sends dummy tensors to the neighbouring stages, and gloo can't send to a stage on the same rank
    pipeline_stage._PipelineStageBase._get_init_p2p_neighbors_ops = lambda self: []
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name, microbatches = settings["schedule"], settings["microbatches"]
    chunks = ranks * settings["chunks"]
    rank_of = [min(c, chunks - 1 - c) if name == "ZBVZeroBubble" else c % ranks for c in range(chunks)]
    stages = [
        pipelining.PipelineStage(Chunk(settings["seconds"]), chunk, chunks, torch.device("cpu"))
        for chunk, owner in enumerate(rank_of)
        if owner == rank
    ]
    schedule_class = pipelining.schedules.get_schedule_class(name)
    several = issubclass(schedule_class, pipelining.schedules.PipelineScheduleMulti)
    loss = lambda y, target: ((y - target) ** 2).mean()
    schedule = schedule_class(stages if several else stages[0], microbatches, loss_fn=loss)
    inputs = torch.ones(microbatches * settings["tokens"], HIDDEN, requires_grad=True)
    steps = []
    for _ in range(settings["steps"]):
        dist.barrier()
        slept, begin = 0.0, time.perf_counter()
        schedule.step(
            *((inputs,) if rank == 0 else ()),
            **({"target": torch.zeros_like(inputs), "losses": []} if rank_of[-1] == rank else {}),
        )
        dist.barrier()
        seconds = time.perf_counter() - begin
        all_slept = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(all_slept, torch.tensor([slept], dtype=torch.float64))
        steps.append((seconds, [s.item() for s in all_slept]))
    if rank == 0:
        print(json.dumps(steps))
    dist.barrier()
    dist.destroy_process_group()


main()
