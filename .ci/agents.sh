#!/usr/bin/env bash
# Tests with real agents. Claude Code, Codex, pi, Gemini CLI and opencode must continue exported
# sessions, and an import must add their new events to the exported branch (agents.py). The
# sessions in which an agent searched a memory must not push the original events down in later
# searches (echoes.py). npm installs the agents in a temporary folder. Endpoints on loopback
# simulate the models.
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

# Each package installs the binary for this platform, in its own folder or in a sibling folder.
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

# Debian ships `venv` as a separate package.
python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
} >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; exit 1; }
"$work/venv/bin/pip" install --quiet zstandard==0.25.0
"$work/venv/bin/python" .ci/agents.py "$binary" "$data" claude-code="$bin/claude" \
  codex="$bin/codex" pi="$bin/pi" gemini-cli="$bin/gemini" opencode="$bin/opencode"
"$work/venv/bin/python" .ci/echoes.py "$binary" "$data" claude-code="$bin/claude" \
  codex="$bin/codex" gemini-cli="$bin/gemini" opencode="$bin/opencode"
