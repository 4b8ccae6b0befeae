#!/usr/bin/env bash
# Sessions that are exported must be ones that the real Claude Code, Codex, pi, Gemini CLI and
# opencode go on with, and what these add must come back to the exported branch (agents.py).
# Sessions in which the real Claude Code and the real Codex asked a memory must not bury what it
# remembers (echoes.py). Installs them by npm in a temporary folder; endpoints on loopback play the
# models.
#
# Usage: .ci/agents.sh [BINARY] [DATA]    (default: target/debug/treering, $TREERING_TEST_DATA)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
data=${2:-${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
export npm_config_loglevel=error

# It puts the program for this machine in place itself, in its own folder or in one beside it.
npm install --prefix "$work/npm" @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0 \
  @mariozechner/pi-coding-agent@0.73.1 @google/gemini-cli@0.61.0 opencode-ai@1.18.33 \
  >"$work/npm.log" 2>&1 || {
  cat "$work/npm.log" >&2
  exit 1
}
bin=$work/npm/node_modules/.bin
for program in claude codex pi gemini opencode; do
  echo "$program $("$bin/$program" --version | tail -1)"
done

# On Debian, Python's own `venv` is a package apart.
python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
} >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; exit 1; }
"$work/venv/bin/pip" install --quiet zstandard==0.25.0
"$work/venv/bin/python" .ci/agents.py "$binary" "$data" claude-code="$bin/claude" \
  codex="$bin/codex" pi="$bin/pi" gemini-cli="$bin/gemini" opencode="$bin/opencode"
"$work/venv/bin/python" .ci/echoes.py "$binary" "$bin/claude" "$bin/codex" "$data"
