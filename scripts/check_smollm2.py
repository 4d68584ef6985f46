#!/usr/bin/env python3
"""Checks cortiq on a real model: scripts/check_smollm2.py CORTIQ GGUF

Imports the GGUF file into a temporary folder. Then

1. compares every item of fixtures/smollm2/golden.json with llama.cpp, in f16: the prompt's token ids must be equal, and
   the greedy continuation must be equal up to the first step whose best two log-probabilities are less than 0.05 apart;
2. continues eight prompts by 64 tokens, greedily, in q8, with and without tokens guessed by prompt lookup: both must be
   equal up to the first step whose best two logits are less than 0.05 apart.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

MARGIN = 0.05
STEPS = 64
# Beside the prompts of golden.json: texts that repeat themselves, of which there is something to look up.
REPETITIVE = [
    "one two three four five one two three four five one two three",
    "Mary had a little lamb, little lamb, little lamb. Mary had a little lamb, its fleece was white as snow.\nMary had",
    "| name | age |\n|---|---|\n| Anna | 31 |\n| Bernd | 42 |\n| Carla | 53 |\n| name | age |\n|---|---|\n| Anna | 31 |",
]


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


def continue_by(cortiq, model, ids, *options):
    """The JSON of a greedy continuation by STEPS tokens."""
    prompt = ",".join(map(str, ids))
    command = [cortiq, "run", model, "--ids", prompt, "-n", str(STEPS), "--greedy", "--ignore-eos", "--json", *options]
    return run(*command)


def check_guesses(cortiq, model, text):
    """What is wrong with the continuation of a text with guesses, or None; and how many were verified and accepted."""
    ids = run(cortiq, "tokenize", model, "--json", text=text.encode())["ids"]
    plain = continue_by(cortiq, model, ids, "--speculative", "off")["tokens"]
    guessed = continue_by(cortiq, model, ids, "--speculative", "ngram")
    tokens, counts = guessed["tokens"], (guessed["speculative"]["drafted"], guessed["speculative"]["accepted"])
    if len(plain) != STEPS or len(tokens) != STEPS:
        return f"{len(plain)} tokens without guesses, {len(tokens)} with", counts
    for step, (want, got) in enumerate(zip(plain, tokens)):
        if want != got:
            known = ",".join(map(str, ids + plain[:step]))
            best, second = sorted(run(cortiq, "logits", model, "--ids", known, "--json")["logits"][0], reverse=True)[:2]
            if best - second < MARGIN:
                print(f"    (from token {step} on another text: its margin is {best - second:.4f})")
                return None, counts
            return f"token {step} is {got} instead of {want}, whose margin is {best - second:.4f}", counts
    return None, counts


def check_all_guesses(cortiq, model, texts):
    """Number of texts whose continuation differs."""
    failed, drafted, accepted = 0, 0, 0
    for text in texts:
        problem, counts = check_guesses(cortiq, model, text)
        print(f"guesses, {text[:30]!r}: {counts[1]} of {counts[0]} accepted: {problem or 'equal'}")
        failed += problem is not None
        drafted, accepted = drafted + counts[0], accepted + counts[1]
    if not 0 < accepted < drafted:
        print(f"guesses: {accepted} of {drafted} accepted, which shows nothing")
        failed += 1
    return failed


def main():
    cortiq, gguf = sys.argv[1:]
    golden = pathlib.Path(__file__).parent.parent / "fixtures/smollm2/golden.json"
    items = json.loads(golden.read_text())["models"]["f16"]["items"]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model, small = f"{folder}/f16.cmf", f"{folder}/q8.cmf"
        for output, quant in [(model, "f16"), (small, "q8")]:
            run(cortiq, "import-gguf", gguf, "-o", output, "--quant", quant, "--json")
        for item in items:
            problem, steps = check(cortiq, model, item)
            print(f"{item['kind']}: {steps} of {len(item['output_ids'])} steps compared: {problem or 'equal'}")
            failed += problem is not None
        texts = [item["prompt_text"] for item in items] + REPETITIVE
        assert len(texts) == 8, "eight prompts"
        failed += check_all_guesses(cortiq, small, texts)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
