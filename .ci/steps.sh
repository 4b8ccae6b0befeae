# Functions for .ci/run and .ci/nightly, which source this file.

# Builds once, from an empty folder: without what only later builds or debuggers use.
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
export TREERING_TEST_DATA="${TREERING_TEST_DATA:-$(cd .. && pwd)/shared/data}"
if [ ! -d "$TREERING_TEST_DATA/trajectories" ]; then
  echo "no trajectories in $TREERING_TEST_DATA: name their folder in TREERING_TEST_DATA" >&2
  exit 1
fi

work=$(mktemp -d)
current= began=0

# Begins a step. `print_durations` shows how long each took.
step() {
  end_step
  current=$1 began=$SECONDS
  echo
  echo "== $1 ($(date -u +%H:%M:%S))"
}

end_step() {
  [ -z "$current" ] || printf '%5d s  %s\n' $((SECONDS - began)) "$current" >>"$work/times"
  current=
}

# Prints the seconds of all steps. Steps of background jobs overlap with others.
print_durations() {
  end_step
  cat "$work/times"
  printf '%5d s  in all\n' "$SECONDS"
}

declare -A jobs
clean_up() {
  for job in "${jobs[@]}"; do kill "$job" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean_up EXIT

# Starts a background job, which runs during the next steps.
beside() { # NAME COMMAND...
  "${@:2}" >"$work/$1.log" 2>&1 &
  jobs[$1]=$!
}

# Waits for a background job and prints its output. Exits with 1 if the job failed.
ended() { # NAME
  local job=${jobs[$1]}
  unset "jobs[$1]"
  wait "$job" || { cat "$work/$1.log" >&2; exit 1; }
  cat "$work/$1.log"
}

# Runs commands one after the other until one fails.
one_by_one() { # COMMAND...
  local command
  current=
  for command in "$@"; do
    step "$command"
    $command || return
  done
  end_step
}

# Installs the Debian packages for clients, pages and PostgreSQL in one step: two scripts that run
# apt-get at the same time fail on its lock.
debian_packages() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 0
  if command -v chromium && command -v chromedriver && command -v valgrind &&
    python3 -c 'import ensurepip' && ls /usr/lib/postgresql/*/bin/initdb; then
    return
  fi >/dev/null 2>&1
  step "Debian packages for what follows"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    python3-venv chromium chromium-driver fonts-dejavu-core valgrind postgresql \
    >/dev/null 2>&1
}
