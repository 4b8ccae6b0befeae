#!/usr/bin/env bash
# Tests the log in PostgreSQL and the nodes of a cluster (docs/CLUSTER.md) against real servers,
# which the tests start. Installs Debian's postgresql if it is missing.
#
# Usage: .ci/postgres.sh [--measure]    (compares appends with plain commits, in a release build)
# TREERING_POSTGRES_BIN names the folder of PostgreSQL's programs, if it is not the usual one.
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
  cargo test -p treering-log-postgres -p treering-cluster
fi
