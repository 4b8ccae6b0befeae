#!/usr/bin/env bash
# The log in PostgreSQL (docs/CLUSTER.md) against real servers, which its tests start. Installs
# Debian's postgresql where there is none.
#
# Usage: .ci/postgres.sh [--measure]    (appends beside PostgreSQL's own commits, optimised)
# TREERING_POSTGRES_BIN names the folder of PostgreSQL's programs, if they are in no usual place.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=(/usr/lib/postgresql/*/bin/initdb)
if [ ! -x "${TREERING_POSTGRES_BIN:-}/initdb" ] && [ ! -x "${programs[0]}" ]; then
  [ "$(id -u)" = 0 ] || {
    echo "postgres: PostgreSQL is not installed, and only root can: apt-get install postgresql" >&2
    exit 1
  }
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql
fi

export TREERING_REQUIRE_POSTGRES=1
if [ "${1:-}" = --measure ]; then
  cargo test --release -p treering-log-postgres --test postgres measure -- --ignored --nocapture
else
  cargo test -p treering-log-postgres
fi
