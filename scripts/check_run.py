#!/usr/bin/env python3
"""Checks a finished run: its held-out loss must be at least 1.0 nat below the unigram entropy of the same split."""

import json
import sys

result = json.load(open(sys.argv[1]))
loss, entropy = result["evaluationLoss"], result["unigramEntropy"]
print(f"held-out loss {loss:.4f}, unigram entropy {entropy:.4f}: {entropy - loss:.4f} nats below")
sys.exit(0 if entropy - loss >= 1.0 else "that is less than 1.0 nat: the model has not learned")
