#!/usr/bin/env bash
# Runs the Python and the Node.js example against a real server.
#
# Usage: .ci/clients.sh [BINARY]    (default: target/debug/treering)
set -euo pipefail
cd "$(dirname "$0")/.."

binary="${1:-target/debug/treering}"
work=$(mktemp -d)
server=

clean_up() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

fail() {
  echo "clients: $1" >&2
  [ ! -s "$work/server.log" ] || sed 's/^/  server: /' "$work/server.log" >&2
  exit 1
}

echo "-- packages"
# Debian ships `venv` as a separate package.
python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
} >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; fail "no Python venv"; }
python="$work/venv/bin/python"
"$python" -m pip install --quiet --disable-pip-version-check -r examples/python/requirements.txt
# Works in a copy, to leave the work tree unchanged.
mkdir -p "$work/examples"
cp -r examples/node "$work/examples/node"
rm -rf "$work/examples/node/node_modules"
cp -r proto "$work/proto"
(cd "$work/examples/node" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error)

echo "-- server"
: >"$work/server.log" # the loop may read it before the server starts
"$binary" serve --data "$work/store" --listen 127.0.0.1:0 --color never >"$work/server.log" 2>&1 &
server=$!
address=
for _ in $(seq 600); do
  address=$(sed -n 's|^Serving .* at http://\([0-9.:]*\).*|\1|p' "$work/server.log")
  [ -z "$address" ] || break
  kill -0 "$server" 2>/dev/null || fail "the server ended before it listened"
  sleep 0.1
done
[ -n "$address" ] || fail "the server did not say where it listens within a minute"
timeout 30 "$python" .ci/wait_healthy.py "$address" || fail "the server is not healthy"
echo "healthy at $address"

for run in "$python examples/python/treering_tour.py" "node $work/examples/node/treering_tour.mjs"; do
  echo "-- $(basename "${run##* }")"
  # shellcheck disable=SC2086 # the words of the command
  timeout 120 $run "$address" || fail "$(basename "${run##* }") exited with $?"
done

echo "-- the end"
kill -TERM "$server"
code=0
timeout 30 tail --pid="$server" -f /dev/null || fail "the server did not end within 30 s of SIGTERM"
wait "$server" || code=$?
server=
[ "$code" = 0 ] || fail "the server exited with $code after SIGTERM"
"$binary" verify --data "$work/store" --deep
echo "clients: both examples passed, and the server ended cleanly"
