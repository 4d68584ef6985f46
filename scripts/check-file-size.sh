#!/usr/bin/env bash
# Fails when a source file has more than 1,000 lines.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
limit=1000
files=0
too_long=0
longest=0
longest_file=

while IFS= read -r -d '' file; do
    lines=$(wc -l <"$file")
    lines=$((lines))
    files=$((files + 1))
    if [ "$lines" -gt "$longest" ]; then
        longest=$lines
        longest_file=$file
    fi
    if [ "$lines" -gt "$limit" ]; then
        echo "$file: $lines lines, at most $limit are allowed" >&2
        too_long=$((too_long + 1))
    fi
done < <(find . \( -name .git -o -name target -o -path ./models \) -prune -o -type f \
    \( -name '*.rs' -o -name '*.wgsl' -o -name '*.py' -o -name '*.sh' -o -path './.ci/run' \) -print0)

if [ "$files" -eq 0 ]; then
    echo "no source files found under $root" >&2
    exit 1
fi
echo "$files source files; the longest is $longest_file with $longest lines"
[ "$too_long" -eq 0 ]
