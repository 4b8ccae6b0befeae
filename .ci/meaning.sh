#!/usr/bin/env bash
# Tests search by meaning with the model of the Python package's extra `semantic`.
#
# Usage: .ci/meaning.sh [BINARY] [--long]    (default: target/debug/treering)
# --long measures with more known items and with scifact, which takes half an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
client=$PWD/clients/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
. .ci/pythons.sh

fail() {
  echo "meaning: $1" >&2
  exit 1
}

step "the model of the Python package"
venv "${pythons[-1]}" "$work/venv"
"$work/venv/bin/pip" install --quiet $(needed "$work/venv" semantic)
model=$(XDG_CACHE_HOME=$work PYTHONPATH=$client/src "$work/venv/bin/python" -m treering.semantic)

step "what was meant is found in other words"
export TREERING_DATA=$work/store TREERING_EMBEDDER=$model
for text in "the automobile would not start because its battery was flat" \
  "two pancakes with maple syrup, please" "the invoice was paid on Friday"; do
  "$binary" append new message user "$text" >"$work/append.txt"
done
"$binary" search --by meaning --complete -n 1 'car has no power' | tee "$work/found.txt"
grep -q "battery was flat" "$work/found.txt" || fail "not found by meaning"
"$binary" search 'car has no power' >"$work/words.txt"
! grep -q "battery was flat" "$work/words.txt" || fail "found by words: this shows nothing"
echo 'battery was flat' >"$work/literal.txt"
"$binary" erase --literal-from "$work/literal.txt" --yes >"$work/erased.txt"
"$binary" search --by meaning --complete 'car has no power' >"$work/found.txt"
! grep -q "battery was flat" "$work/found.txt" || fail "found after it was erased"
echo "as expected"

# With the features of the gate's build, so that nothing is compiled again.
quality() { # TEST
  TREERING_TEST_MODEL=$model cargo test --quiet --lib "meaning_quality_tests::$1" -- --nocapture |
    tee "$work/quality.txt" | grep -E "success@|nDCG" || fail "$(cat "$work/quality.txt")"
}

if [ "${2:-}" = --long ]; then
  step "known items of real sessions in other words, and scifact"
  TREERING_TEST_ALL=1 quality ""
else
  step "known items of real sessions in other words"
  quality paraphrases
fi
