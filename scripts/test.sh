#!/usr/bin/env bash
# All tests of the workspace: with cargo-nextest where it is installed (which leaves the doc tests to cargo test), else
# with cargo test. Arguments choose tests instead, for example: scripts/test.sh -p cortiq-cmf
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

if ! command -v cargo >/dev/null 2>&1; then
    echo "error: cargo is missing. Install Rust from https://rustup.rs, then run this again." >&2
    exit 1
fi

runner=(test)
if cargo nextest --version >/dev/null 2>&1; then runner=(nextest run); fi

if [ "$#" -gt 0 ]; then
    cargo "${runner[@]}" "$@"
else
    cargo "${runner[@]}" --workspace
    if [ "${runner[0]}" = nextest ]; then cargo test --workspace --doc; fi
fi
