#!/usr/bin/env bash
# Tests the inspector in a real browser (Debian's Chromium). Checks every page for console errors,
# violations of its content security policy, accessibility and width on a narrow screen. Clicks
# through forks, decisions and live updates, and opens every page without JavaScript too.
#
# Usage: .ci/browser.sh [BINARY] [DATA]    (default: target/debug/treering, $TREERING_TEST_DATA)
# With SCREENSHOTS=DIR it writes pictures of the pages there.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
data=${2:-${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}}
work=$(mktemp -d)
server=
clean_up() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" || true; }
  rm -rf "$work"
}
trap clean_up EXIT

command -v chromium >/dev/null && command -v chromedriver >/dev/null || {
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    chromium chromium-driver fonts-dejavu-core >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; exit 1; }
}
# Installs the packages in the temporary folder, to leave the work tree unchanged.
cp .ci/browser/*.mjs .ci/browser/package.json .ci/browser/package-lock.json "$work/"
(cd "$work" && PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --no-audit --no-fund --loglevel=error)

"$binary" import --data "$work/store" "$data/trajectories/pi-mono.jsonl.zst" \
  "$data/trajectories/swe-agent.jsonl.zst"
"$binary" serve --json --data "$work/store" --listen 127.0.0.1:0 >"$work/serving" &
server=$!
for _ in $(seq 200); do
  [ -s "$work/serving" ] && break
  sleep 0.1
done
[ -z "${SCREENSHOTS:-}" ] || mkdir -p "$SCREENSHOTS"
node "$work/main.mjs" "$binary" "$work/serving" "${SCREENSHOTS:+$(realpath "$SCREENSHOTS")}"
