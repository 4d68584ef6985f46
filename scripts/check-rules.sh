#!/usr/bin/env bash
# Rules that the compiler cannot check (docs/building-and-testing.md):
#   1. `unsafe` only in the files listed below;
#   2. the environment is read in crates/cli/src/config.rs only;
#   3. every page under docs/ that something refers to exists.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
broken=0

# Prints what grep found (its input) as violations of a rule.
report() {
    local found
    found=$(cat)
    if [ -n "$found" ]; then
        printf '%s:\n%s\n' "$1" "$found" >&2
        broken=1
    fi
}

# Rust sources, `file:line:text`, without lines that are comments.
rust_lines() {
    local status=0
    grep -rnE --include='*.rs' --exclude-dir=target "$1" crates || status=$?
    [ "$status" -le 1 ]
}
code_lines() {
    rust_lines "$1" | { grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true; }
}

# 1. Kernels and pool of the CPU executor, the two places that map a file, and the wgpu calls that need it: the token of
#    experimental features, shaders without run-time checks, and what only the driver tells of its memory.
unsafe_allowed='^crates/cpu/src/(kernels|pool)(\.rs|/)|^crates/(cmf/src/source|convert/src/files)\.rs:'
unsafe_allowed+='|^crates/gpu/src/(device|device/memory|kernel)\.rs:'
unsafe_code='\bunsafe[[:space:]]*(\{|\(|$|fn\b|impl\b|extern\b|trait\b)|allow\(.*unsafe_code|expect\(.*unsafe_code'
report "\`unsafe\` outside the files that may use it" \
    < <(code_lines "$unsafe_code" | { grep -vE "$unsafe_allowed" || true; })

# 2. At run time; env!(...) of the compiler is something else. `env` of an argument (clap) reads it too.
report "the environment is read outside crates/cli/src/config.rs" \
    < <(code_lines '\benv::(vars?|vars?_os)\b|use std::env::\{?.*\bvars?(_os)?\b|#\[(arg|clap)\(.*\benv\b' |
        { grep -vE '^crates/cli/src/config\.rs:' || true; })

# 3. Named as docs/NAME.md anywhere in sources and texts.
missing_pages() {
    grep -rhoE --include='*.rs' --include='*.md' --include='*.sh' --include='*.toml' --include='*.py' \
        --exclude-dir=target --exclude-dir=models --exclude-dir=.git 'docs/[a-z0-9-]+\.md' . |
        sort -u | while IFS= read -r page; do
        [ -f "$page" ] || echo "$page"
    done
}
report "pages that something refers to and that do not exist" < <(missing_pages)

[ "$broken" -eq 0 ] && echo "all rules hold"
exit "$broken"
