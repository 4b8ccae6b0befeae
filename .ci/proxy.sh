#!/usr/bin/env bash
# `treering proxy` must record all that the official SDKs, the real Claude Code and the real Codex
# send and receive through it (proxy.py). pip and npm install the clients in a temporary folder. An
# endpoint on loopback simulates the models.
#
# Usage: .ci/proxy.sh [BINARY]    (default: target/debug/treering)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
export npm_config_loglevel=error

npm install --prefix "$work/npm" @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0 \
  openai@7.59.0 @anthropic-ai/sdk@1.14.0 >"$work/npm.log" 2>&1 || {
  cat "$work/npm.log" >&2
  exit 1
}
bin=$work/npm/node_modules/.bin
for program in claude codex; do
  echo "$program $("$bin/$program" --version | tail -1)"
done

. .ci/pythons.sh
venv python3 "$work/venv"
"$work/venv/bin/pip" install --quiet openai==3.54.0 anthropic==2.12.0
# Node.js resolves modules from the folder of the script.
cp .ci/proxy_sdk.mjs "$work/npm/"
"$work/venv/bin/python" .ci/proxy.py "$binary" "$work/npm/proxy_sdk.mjs" "$bin/claude" "$bin/codex"
