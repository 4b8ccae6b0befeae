# shellcheck shell=bash disable=SC2154 # variables of the scripts that source this
# The faults of .ci/cluster_chaos.sh, which sources this file: each is a function that tells the
# ledger when it begins, and lets it check everything after the repair.

kill_node() {
  step "a node is killed"
  tell mark
  end_node a -9
  tell probe b c
  start_node a
  settled 3
  tell report
}

kill_primary() {
  local primary
  primary=$(primary)
  step "the primary's processes are killed: $primary"
  tell mark
  kill -9 "$(head -1 "$work/$primary/data/postmaster.pid")"
  tell report
  replicated
}

lost_primary() {
  local primary
  primary=$(primary)
  step "the primary's machine dies: $primary"
  tell mark
  kill_machine "$primary"
  tell report
  start_database "$primary"
  replicated
}

# Nothing tells the primary that its standby is gone.
lost_standby() {
  local standby
  standby=$(synchronous_standby)
  step "nothing reaches the synchronous standby any more: $standby"
  tell mark
  isolate "$standby"
  tell report
  rejoin "$standby"
  replicated
}

# A node and the primary are cut off from all others, but not from clients, and the primary's Patroni
# is stopped: it stays a primary. Waits for the standby are cancelled there, so that the node finds
# what no standby has.
split_brain() {
  local others=(b c db1 db2 etcd) patroni
  switch_to db3
  step "a node and the primary are cut off together, and another primary is chosen: a and db3"
  patroni=$(pgrep -f "patroni.py $work/db3.yml")
  tell mark
  # shellcheck disable=SC2086 # several processes
  kill -STOP $patroni
  cut_off a "${others[@]}"
  cut_off db3 "${others[@]}"
  for _ in $(seq 20); do
    sql_on "${ip[db3]}" "select count(pg_cancel_backend(pid)) from pg_stat_activity
      where wait_event = 'SyncRep'" >>"$work/cancelled.txt"
    sleep 0.5
  done
  until_true 60 "there is another primary" sql "select 1" >"$work/primary.txt"
  settled 2
  tell probe b c
  heal a
  heal db3
  sleep 3
  # shellcheck disable=SC2086
  kill -CONT $patroni
  tell report
  replicated
}

kill_both() {
  local primary
  primary=$(primary)
  step "a node and the primary's machine die: b and $primary"
  tell mark
  end_node b -9
  kill_machine "$primary"
  tell probe a c
  start_node b
  start_database "$primary"
  settled 3
  tell report
  replicated
}

stop_owner() {
  step "an owner is stopped beyond its lease, and goes on"
  tell mark
  kill -STOP "${node[a]}"
  settled 2
  tell probe b c
  sleep 2
  kill -CONT "${node[a]}"
  settled 3
  tell report
}

cut_nodes() {
  step "two nodes cannot reach each other"
  tell mark
  cut_off a b
  sleep 12
  tell probe c
  heal a
  tell report
}

cut_database() {
  step "a node cannot reach the database"
  tell mark
  cut_off a "${databases[@]}"
  settled 2
  tell probe b c
  heal a
  settled 3
  tell report
}

one_way() {
  local primary
  primary=$(primary)
  step "packets from a node to the primary are lost"
  tell mark
  cut_one_way a "$primary"
  settled 2
  tell probe b c
  heal a
  settled 3
  tell report
  step "packets from the primary to a node are lost"
  tell mark
  cut_one_way "$primary" b
  settled 2
  tell probe a c
  heal "$primary"
  settled 3
  tell report
  step "packets from a node to another are lost"
  tell mark
  cut_one_way a b
  sleep 12
  tell probe c
  heal a
  tell report
}

restart_database() {
  local primary
  primary=$(primary)
  step "PostgreSQL is restarted: $primary"
  tell mark
  curl -sS -X POST "http://${ip[$primary]}:8008/restart" && echo
  tell report
  replicated
}

# The last frame of each shard.
LAST_FRAMES="select frame_id from treering_frame join treering_shard using (shard)
  where first_offset + count > head"

# The standbys are cut off while appends wait for them. Their backends are cancelled, so that the
# primary shows what no standby has. Then the primary dies.
lost_answer() {
  local primary others waiting frames lost
  primary=$(primary)
  read -ra others <<<"${databases[@]/$primary/}"
  step "appends wait for a standby and are cancelled, then the primary dies: $primary"
  tell mark
  cut_off "$primary" "${others[@]}"
  sleep 2
  waiting=$(sql_on "${ip[$primary]}" "select count(pg_cancel_backend(pid)) from pg_stat_activity
    where wait_event = 'SyncRep'")
  sleep 1
  frames=$(sql_on "${ip[$primary]}" "select string_agg(quote_literal(frame_id), '),(')
    from ($LAST_FRAMES) as frames")
  kill_machine "$primary"
  until_true 60 "there is another primary" sql "select 1" >"$work/primary.txt"
  lost=$(sql "select count(*) from (values ($frames)) as old (id)
    where id::uuid not in (select frame_id from treering_frame)")
  echo "   $waiting backends were cancelled; $lost frames of the old primary are not on the new one"
  [ "$lost" -gt 0 ] || fail "nothing was lost by the fail-over"
  heal "$primary"
  start_database "$primary"
  tell report
  replicated
}

# The primary is the first host of the URL, and its machine does not answer: nobody refuses
# connections to it.
lost_host() {
  switch_to db1
  step "nothing reaches the primary any more, the first host of the URL: db1"
  tell mark
  isolate db1
  tell probe a b c
  step "a node is restarted meanwhile"
  end_node c -9
  start_node c
  settled 3
  tell report
  rejoin db1
  replicated
}

# The kernel of a stopped machine's processes still accepts connections.
stop_primary() {
  switch_to db1
  step "the processes of the primary stop, and go on after a fail-over: db1"
  tell mark
  signal_machine db1 -STOP
  tell probe a b c
  signal_machine db1 -CONT
  tell report
  replicated
}

# Makes a server the primary. Patroni does this only for the synchronous standby.
switch_to() { # DATABASE
  local primary standby
  primary=$(primary)
  [ "$primary" != "$1" ] || return 0
  standby=$(synchronous_standby)
  if [ "$standby" != "$1" ]; then
    kill_machine "$standby"
    until_true 60 "$1 is the synchronous standby" is_synchronous "$1"
  fi
  # Patroni may see the standby a moment later.
  until_true 30 "Patroni makes $1 the primary" curl -sSf -X POST "http://${ip[$primary]}:8008/switchover" \
    -d "{\"leader\": \"$primary\", \"candidate\": \"$1\"}" >>"$work/switchover.txt" 2>&1
  [ "$standby" = "$1" ] || start_database "$standby"
  replicated
  [ "$(primary)" = "$1" ] || fail "$1 is not the primary"
}

is_synchronous() { # DATABASE
  [ "$(synchronous_standby)" = "$1" ]
}

full_disk() {
  local primary free
  primary=$(primary)
  step "the disk of the primary is full: $primary"
  tell mark
  free=$(df --output=avail -k "$work/$primary" | tail -1)
  dd if=/dev/zero of="$work/$primary/filler" bs=1k count="$free" 2>/dev/null || true
  sleep 12
  rm "$work/$primary/filler"
  tell report
  replicated
}

slow_disk() {
  local primary
  primary=$(primary)
  step "each flush of the primary's disk takes 300 ms: $primary"
  tell mark
  local pids=() pid
  for pid in $(ip netns pids "$primary"); do pids+=(-p "$pid"); done
  strace -f -q -o "$work/strace.txt" -e trace=fdatasync,fsync \
    -e inject=fdatasync,fsync:delay_enter=300000 "${pids[@]}" 2>"$work/strace.log" &
  local strace=$!
  sleep 15
  kill "$strace"
  wait "$strace" 2>/dev/null || true
  echo "   $(grep -c DELAYED "$work/strace.txt" || true) flushes were delayed"
  tell report
  replicated
}

clock_jump() {
  local library offset
  library=$(ls /usr/lib/*/faketime/libfaketime.so.1)
  step "the clock of a node jumps by an hour, forward and back"
  echo "+0" >"$work/clock"
  end_node b -TERM
  start_node b LD_PRELOAD="$library" FAKETIME_TIMESTAMP_FILE="$work/clock" FAKETIME_NO_CACHE=1 \
    FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1
  settled 3
  for offset in +3600 -3600 +0; do
    tell mark
    echo "$offset" >"$work/clock"
    sleep 12
    settled 3
    tell report
  done
}

# Two faults at a time, chosen by chance, again and again. STORM_SECONDS and STORM_SEED set how long
# and which.
storm() {
  local seconds=${STORM_SECONDS:-180} seed=${STORM_SEED:-$(date +%s)} one other end
  RANDOM=$((seed % 32768)) end=$((SECONDS + seconds))
  step "faults chosen by chance, for $seconds s (STORM_SEED=$seed)"
  tell mark
  while [ $SECONDS -lt $end ]; do
    choose one
    choose other
    while [ "${other#* }" = "${one#* }" ]; do choose other; done
    echo "   $one, $other ($(date -u +%H:%M:%S))"
    # shellcheck disable=SC2086 # a verb and a host
    { begin $one; sleep $((RANDOM % 6)); begin $other; sleep $((RANDOM % 14)); end $one; end $other; }
    sleep $((RANDOM % 6))
    revive
  done
  until_true 90 "three nodes share the shards" has_revived
  replicated
  tell report
}

choose() { # VARIABLE
  local verbs=(kill kill stop cut isolate) hosts=(a b c db1 db2 db3) verb host
  verb=${verbs[RANDOM % ${#verbs[@]}]} host=${hosts[RANDOM % ${#hosts[@]}]}
  case $((RANDOM % 10)) in
    0) verb=cancel host=backends ;;
    1) verb=terminate host=backends ;;
    2) verb=drain host=${hosts[RANDOM % 3]} ;;
  esac
  printf -v "$1" '%s %s' "$verb" "$host"
}

begin() { # VERB HOST
  case $1:$2 in
    kill:db*) kill_machine "$2" ;;
    kill:*) end_node "$2" -9 ;;
    drain:*) kill -TERM "${node[$2]}" ;;
    stop:*) signal_machine "$2" -STOP ;;
    isolate:*) isolate "$2" ;;
    # A node from the database, a server from the others.
    cut:*) cut_off "$2" "${databases[@]}" ;;
    cancel:*) on_backends pg_cancel_backend ;;
    terminate:*) on_backends pg_terminate_backend ;;
  esac
}

end() { # VERB HOST
  case $1:$2 in
    kill:db*) start_database "$2" ;;
    kill:*) start_node "$2" ;;
    drain:*) end_node "$2" -9; start_node "$2" ;;
    stop:*) signal_machine "$2" -CONT ;;
    isolate:*) rejoin "$2" ;;
    cut:*) heal "$2" ;;
  esac
}

on_backends() { # FUNCTION
  sql "select count($1(pid)) from pg_stat_activity where usename = 'node'" >>"$work/backends.txt" ||
    echo "   there is no primary"
}
