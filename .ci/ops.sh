#!/usr/bin/env bash
# Checks alerts, dashboard and runbook against a real server: .ci/ops.sh BINARY
#
# promtool checks and tests the alerts. Every metric of an alert or the dashboard must be in a
# scrape of a running server, and every alert must be in the runbook.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "$1")

if ! command -v promtool >/dev/null; then
  if ! { command -v apt-get && [ "$(id -u)" = 0 ] && apt-get install -qq -y --no-install-recommends prometheus; } >/dev/null 2>&1; then
    echo "promtool is not here (Debian: apt-get install prometheus): the alerts' own tests are left out" >&2
  fi
fi
if command -v promtool >/dev/null; then
  promtool check rules ops/alerts.yml
  promtool check config ops/prometheus.yml
  promtool test rules ops/alerts_test.yml
fi

dir=$(mktemp -d)
server=
end() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap end EXIT
# Nothing listens at the summariser's endpoint: its metrics are in the scrape all the same.
"$binary" serve --data "$dir/store" --listen 127.0.0.1:0 --metrics 127.0.0.1:0 --json \
  --backup "$dir/copy" --heads 1s --heads-to "$dir/heads" \
  --summariser-url http://127.0.0.1:9/v1 --summariser-model none >"$dir/serving" 2>"$dir/log" &
server=$!
for _ in $(seq 600); do
  [ -s "$dir/serving" ] && break
  sleep 0.1
done
url=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["serving"])' "$dir/serving")
metrics=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["metrics"])' "$dir/serving")
"$binary" --server "$url" append new message user hello >/dev/null
if "$binary" --server "$url" append @last --expect 99 message user late >/dev/null 2>&1; then
  echo "an append with a wrong revision was taken" >&2
  exit 1
fi
"$binary" --server "$url" search hello >/dev/null
python3 .ci/ops.py "$metrics" ops/alerts.yml ops/grafana.json docs/OPERATIONS.md
