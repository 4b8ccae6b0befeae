#!/usr/bin/env bash
# Attacks the binary from outside: kill -9, power loss, failing disks, damage, locks, limits,
# amplified requests, heavy calls (one and four at a time), races, permissions, odd paths. Prints
# each failure with the command that repeats it, and exits with 1 if there is any. Each file in
# .ci/campaign/kinds describes its kind at the top.
#
# Usage: .ci/campaign.sh BINARY [--short | --long] [--only KIND[,KIND]] [--seed N] [--round N] [--keep]
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d "${TMPDIR:-/tmp}/treering-campaign-XXXXXX")
export PYTHONDONTWRITEBYTECODE=1
case " $* " in *" --keep "*) echo "campaign: kept in $work" ;; *) trap 'rm -rf "$work"' EXIT ;; esac

python="${CAMPAIGN_PYTHON:-}"
if [ -z "$python" ]; then
  # Debian ships `venv` as a separate package.
  python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
    apt-get update -qq && apt-get install -y -qq python3-venv
    python3 -m venv --clear "$work/venv"
  } >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; exit 1; }
  python="$work/venv/bin/python"
  "$python" -m pip install --quiet --disable-pip-version-check \
    -r examples/python/requirements.txt -r .ci/campaign/requirements.txt
fi
"$python" .ci/campaign/main.py "$work" "$@"
