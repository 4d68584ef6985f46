#!/usr/bin/env python3
"""Compares cortiq with llama.cpp on a real model: scripts/check_smollm2.py CORTIQ GGUF

Imports the GGUF file as f16 into a temporary folder, then checks every item of fixtures/smollm2/golden.json: the
prompt's token ids must be equal, and the greedy continuation must be equal up to the first step whose best two
log-probabilities are less than 0.05 apart.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

MARGIN = 0.05


def run(*command, text=None):
    """The JSON that a command prints."""
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    return json.loads(done.stdout)


def certain_steps(item):
    """Number of leading steps whose best token is clear."""
    for step, top in enumerate(item["top1"]):
        best, second = top["next"][0]["logprob"], top["next"][1]["logprob"]
        if best - second < MARGIN:
            return step
    return len(item["output_ids"])


def check(cortiq, model, item):
    """What is wrong with one item, or None; and how many steps were compared."""
    ids = run(cortiq, "tokenize", model, "--json", text=item["prompt_text"].encode())["ids"]
    if ids != item["prompt_ids"]:
        return f"prompt ids are {ids}", 0
    prompt = ",".join(map(str, ids))
    count = str(len(item["output_ids"]))
    got = run(cortiq, "run", model, "--ids", prompt, "-n", count, "--greedy", "--json")["tokens"]
    steps = certain_steps(item)
    if got[:steps] != item["output_ids"][:steps]:
        return f"continuation is {got}, expected {item['output_ids']} for {steps} steps", steps
    return None, steps


def main():
    cortiq, gguf = sys.argv[1:]
    golden = pathlib.Path(__file__).parent.parent / "fixtures/smollm2/golden.json"
    items = json.loads(golden.read_text())["models"]["f16"]["items"]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/f16.cmf"
        run(cortiq, "import-gguf", gguf, "-o", model, "--quant", "f16", "--json")
        for item in items:
            problem, steps = check(cortiq, model, item)
            print(f"{item['kind']}: {steps} of {len(item['output_ids'])} steps compared: {problem or 'equal'}")
            failed += problem is not None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
