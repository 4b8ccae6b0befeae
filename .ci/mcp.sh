#!/usr/bin/env bash
# The door for agents: sessions by the official Python SDK, over standard input and output and
# over HTTP, on the port of the services, with a key; and how soon the program answers.
#
# Usage: .ci/mcp.sh [BINARY] [DATA]    (default: target/debug/treering, $TREERING_TEST_DATA)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
data=${2:-${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}}
work=$(mktemp -d)
server=
clean_up() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

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
"$binary" serve --json --data "$work/store" --listen 127.0.0.1:0 --mcp-writable >"$work/serving" &
server=$!
for _ in $(seq 100); do
  [ -s "$work/serving" ] && break
  sleep 0.1
done
url=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["mcp"])' "$work/serving")
"$python" .ci/mcp_session.py http "$url" "$key"
