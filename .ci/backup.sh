#!/usr/bin/env bash
# A backup drill with the built program: back up, back up again incrementally, verify, restore, and
# compare the exports of both stores. Runs against a folder and against a bucket of an S3 server.
#
# Usage: .ci/backup.sh [BINARY]    (default: target/debug/treering)
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(realpath "${1:-target/debug/treering}")
work=$(mktemp -d)
s3=
trap '[ -z "$s3" ] || kill "$s3"; rm -rf "$work"' EXIT

fail() {
  echo "backup: $1" >&2
  exit 1
}

messages() { # FOLDER COUNT
  for number in $(seq "$2"); do
    "$binary" append new message user "message $number of $RANDOM" --data "$1" >/dev/null 2>&1
  done
}

export_of() { # FOLDER
  "$binary" export --format openai-chat --data "$1"
}

drill() { # TARGET NAME [OPTION...]
  local to=$1 name=$2 store=$work/$2 again=$work/$2-again
  shift 2
  messages "$store" 4
  "$binary" backup "$to" --data "$store" "$@"
  messages "$store" 3
  "$binary" backup "$to" --data "$store" "$@"
  "$binary" backup ls "$to" "$@"
  "$binary" backup verify "$to" "$@"
  "$binary" restore "$to" --to "$again" "$@"
  export_of "$store" >"$work/one"
  export_of "$again" >"$work/two"
  cmp "$work/one" "$work/two" || fail "$name: what was restored is not what was there"
  "$binary" verify --deep --data "$again"
}

(umask 077 && openssl rand -hex 32 >"$work/key")
drill "$work/folder" folder
drill "$work/encrypted" encrypted --key-file "$work/key"

. .ci/s3_server.sh
start_s3
create_bucket backups
drill s3://backups/treering bucket
drill s3://backups/encrypted bucket-encrypted --key-file "$work/key"
