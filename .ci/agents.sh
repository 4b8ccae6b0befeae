#!/usr/bin/env bash
# Sessions that are exported must be ones that the real Claude Code goes on with: installs it by
# npm in a temporary folder, and runs agents.py, whose endpoint on loopback answers it.
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
npm install --prefix "$work/npm" @anthropic-ai/claude-code@2.1.197 >"$work/npm.log" 2>&1 || {
  cat "$work/npm.log" >&2
  exit 1
}
claude=$work/npm/node_modules/.bin/claude
"$claude" --version

# On Debian, Python's own `venv` is a package apart.
python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
} >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; exit 1; }
"$work/venv/bin/pip" install --quiet zstandard==0.25.0
"$work/venv/bin/python" .ci/agents.py "$binary" "$claude" "$data"
