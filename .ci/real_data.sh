#!/usr/bin/env bash
# Runs real_data.py in an environment with the package that it needs.
#
# Usage: .ci/real_data.sh BINARY DATA_DIR [--skip NAME]...
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Debian ships `venv` as a separate package.
python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
} >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; exit 1; }
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check zstandard==0.25.0
"$work/venv/bin/python" .ci/real_data.py "$@"
