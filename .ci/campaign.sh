#!/usr/bin/env bash
# Attacks the binary from outside: kill -9, power loss, failing disks, damage, locks, limits,
# amplified requests, heavy calls, alone and four at once, races, permissions, odd paths. Says what broke, and how to
# repeat it; exits with 1 when anything did. What each kind does stands at the top of its file
# in .ci/campaign/kinds.
#
# Usage: .ci/campaign.sh BINARY [--short | --long] [--only KIND[,KIND]] [--seed N] [--round N] [--keep]
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d "${TMPDIR:-/tmp}/treering-campaign-XXXXXX")
export PYTHONDONTWRITEBYTECODE=1
case " $* " in *" --keep "*) echo "campaign: kept in $work" ;; *) trap 'rm -rf "$work"' EXIT ;; esac

python="${CAMPAIGN_PYTHON:-}"
if [ -z "$python" ]; then
  # On Debian, Python's own `venv` is a package apart.
  python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
    apt-get update -qq && apt-get install -y -qq python3-venv
    python3 -m venv --clear "$work/venv"
  } >"$work/venv.log" 2>&1 || { cat "$work/venv.log" >&2; exit 1; }
  python="$work/venv/bin/python"
  "$python" -m pip install --quiet --disable-pip-version-check \
    -r examples/python/requirements.txt -r .ci/campaign/requirements.txt
fi
"$python" .ci/campaign/main.py "$work" "$@"
