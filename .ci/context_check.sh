#!/usr/bin/env bash
# Checks built requests against the types of the providers' Python packages
# (context_check.py), and compares them with the requests that the `ai` package
# for Node.js builds from the same histories (context_compare.mjs).
#
# Usage: .ci/context_check.sh BINARY DATA_DIR [--all | --sample=N]
set -euo pipefail
cd "$(dirname "$0")/.."

binary="$1" data="$2"
shift 2
work=$(mktemp -d)
server=
export PYTHONDONTWRITEBYTECODE=1

clean_up() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

fail() {
  echo "context check: $1" >&2
  [ ! -s "$work/server.log" ] || tail -n 20 "$work/server.log" | sed 's/^/  server: /' >&2
  exit 1
}

echo "-- packages"
# Debian ships `venv` as a separate package.
python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
} >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; fail "no Python venv"; }
python="$work/venv/bin/python"
"$python" -m pip install --quiet --disable-pip-version-check \
  -r examples/python/requirements.txt -r .ci/context/requirements.txt
# Works in a copy, to leave the work tree unchanged.
mkdir -p "$work/.ci"
cp -r .ci/node "$work/.ci/node"
rm -rf "$work/.ci/node/node_modules"
cp -r proto "$work/proto"
(cd "$work/.ci/node" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error)

echo "-- recorded conversations"
files=()
for file in "$data"/trajectories/*.jsonl.zst; do
  # Skips the file that only adds volume.
  case "$file" in *-rest.jsonl.zst) ;; *) files+=("$file") ;; esac
done
"$binary" import --data "$work/store" --format openai-chat "${files[@]}"

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

echo "-- what another library makes of the same histories"
"$python" -c '
import sys, zstandard
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        zstandard.ZstdDecompressor().copy_stream(file, sys.stdout.buffer)
' "${files[@]}" >"$work/trajectories.jsonl"
node "$work/.ci/node/context_compare.mjs" "$address" "$work/trajectories.jsonl" "$@" ||
  fail "a request says something else than the library's"

# Runs last, because it adds branches.
echo "-- the types of the providers' packages"
"$python" .ci/context_check.py "$address" "$@" || fail "a request is refused"

kill -TERM "$server"
wait "$server" || fail "the server exited with $? after SIGTERM"
server=
