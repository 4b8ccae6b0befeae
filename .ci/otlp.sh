#!/usr/bin/env bash
# Tests the recording of agents that only send OpenTelemetry traces. Two real instrumentations,
# configured by environment variables alone, call a scripted model.
#
# Usage: .ci/otlp.sh [BINARY]    (default: target/debug/treering)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

python3 -m venv "$work/venv" >"$work/venv.log" 2>&1 || {
  apt-get update -qq && apt-get install -y -qq python3-venv
  python3 -m venv --clear "$work/venv"
}
"$work/venv/bin/pip" install --quiet httpx 'openai>=3,<4' 'pydantic-ai-slim[openai]>=2.60,<3' \
  opentelemetry-distro opentelemetry-exporter-otlp-proto-grpc \
  'opentelemetry-instrumentation-openai>=0.62,<1'
"$work/venv/bin/python" .ci/otlp_session.py "$binary" "$work"
