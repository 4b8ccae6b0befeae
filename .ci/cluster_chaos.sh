#!/usr/bin/env bash
# Attacks a cluster: three nodes of the built program over three PostgreSQL servers with Patroni and
# etcd, each in a network namespace of its own. Nodes and servers are killed, stopped, cut off,
# restarted and slowed down while clients append and read (cluster_ledger.py). After each fault,
# every acknowledged event must be there once, and reads must be linearizable (cluster_history.py).
# The functions of cluster_faults.sh are the faults.
#
# Usage: .ci/cluster_chaos.sh BINARY TRAJECTORIES [--long] [--only FAULT[,FAULT]] [--keep]
# Needs root on Linux, and Debian's packages (which it installs). --keep leaves the logs.
set -euo pipefail
cd "$(dirname "$0")/.."

SHORT=(kill_node lost_primary stop_owner cut_database cut_nodes lost_answer)
LONG=(kill_node kill_primary lost_primary lost_standby kill_both stop_owner cut_nodes cut_database
  one_way restart_database lost_answer split_brain full_disk slow_disk clock_jump storm lost_host
  stop_primary)

arguments() {
  binary=$(realpath "$1") data=$2/trajectories faults=("${SHORT[@]}") keep=
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      --long) faults=("${LONG[@]}") ;;
      --only) IFS=, read -ra faults <<<"$2"; shift ;;
      --keep) keep=yes ;;
      *) echo "cluster chaos: unknown option $1" >&2; exit 2 ;;
    esac
    shift
  done
  local fault
  for fault in "${faults[@]}"; do
    [[ " ${LONG[*]} " == *" $fault "* ]] || { echo "no fault $fault: ${LONG[*]}" >&2; exit 2; }
  done
}

step() {
  echo "-- $1 ($(date -u +%H:%M:%S))"
}

# ---- outside: installs programs, and starts this script again in namespaces of its own ----

outside() {
  [ "$(id -u)" = 0 ] || { echo "cluster chaos: needs root for network namespaces" >&2; exit 1; }
  work=$(mktemp -d /tmp/treering-chaos-XXXXXX)
  chmod 711 "$work"
  export work
  trap clean_up EXIT
  step "programs"
  packages
  # Debian's Python: the user postgres must be able to run it.
  /usr/bin/python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "patroni[etcd3]==4.1.5" \
    "psycopg[binary]==3.3.9" "grpcio>=1.51.3" "protobuf>=4.21.6" "googleapis-common-protos>=1.57" \
    zstandard==0.25.0 >"$work/pip.log" 2>&1 || { cat "$work/pip.log" >&2; exit 1; }
  # All processes, mounts and interfaces end with the first process of the namespaces.
  INSIDE=yes unshare --net --mount --pid --fork --mount-proc --kill-child \
    bash .ci/cluster_chaos.sh "$@" &
  inside=$!
  wait "$inside"
  [ -z "$keep" ] || echo "cluster chaos: logs are in $work"
}

clean_up() {
  if [ -n "${inside:-}" ]; then
    kill -9 "$inside" 2>/dev/null || true
    wait "$inside" 2>/dev/null || true
  fi
  [ -n "$keep" ] || rm -rf "$work"
}

packages() {
  local needed=(etcd-server postgresql iproute2 iptables faketime strace curl procps python3-venv)
  dpkg-query -W "${needed[@]}" >"$work/packages.txt" 2>&1 && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${needed[@]}" \
    >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; exit 1; }
}

# ---- inside: the faults, one after the other ----

same_exports() {
  local name
  for name in a b c; do
    "$binary" --server "http://${ip[$name]}:7171" export --format openai-chat | sort >"$work/export-$name" ||
      fail "node $name does not export"
    cmp "$work/export-a" "$work/export-$name" || fail "nodes a and $name export different contents"
  done
  echo "   $(wc -l <"$work/export-a") conversations, $(stat -c %s "$work/export-a") bytes"
}

inside() {
  . .ci/cluster_stand.sh
  . .ci/cluster_faults.sh
  step "the ledger's checks find forged histories"
  "$work/venv/bin/python" .ci/cluster_history.py
  step "three PostgreSQL servers with Patroni, three nodes, a ledger"
  network
  start_etcd
  start_databases
  start_nodes
  start_ledger
  local fault
  for fault in "${faults[@]}"; do "$fault"; done
  step "every node shows everything, and the same"
  tell mark
  tell final
  same_exports
  echo "cluster chaos: passed (${#faults[@]} faults in $SECONDS s)"
}

export PYTHONDONTWRITEBYTECODE=1
arguments "$@"
if [ -n "${INSIDE:-}" ]; then inside; else outside "$@"; fi
