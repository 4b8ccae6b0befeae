#!/usr/bin/env bash
# Runs the tests of the gRPC services against three nodes, each call through another one, over a log in
# PostgreSQL from which everything moves to object storage at once. The gate has the same tests over a
# log in memory.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
chmod 711 "$work"
. .ci/postgres_server.sh
clean_up() {
  stop_postgres immediate || true
  rm -rf "$work"
}
trap clean_up EXIT

start_postgres -c max_connections=600 -c shared_buffers=256MB
export TREERING_TEST_POSTGRES=postgres://owner@127.0.0.1:$port
cargo test -p treering-cli --test main suite::grpc::in_cluster -- --nocapture
