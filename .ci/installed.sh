#!/usr/bin/env bash
# Tests the Debian package on a system with systemd: .ci/installed.sh PACKAGE
#
# Creates a small Debian container (debootstrap, systemd-nspawn). The service must start on
# installation, serve under all of its unit's hardening, keep events over a restart, a crash and an
# upgrade, and leave the store on purge. Skips with a message where no container can be created.
set -euo pipefail
package=$(realpath "$1")

left_out() {
  echo "left out: $1" >&2
  exit 0
}

[ "$(id -u)" = 0 ] || left_out "only root makes another Debian"
for tool in debootstrap:debootstrap systemd-nspawn:systemd-container; do
  command -v "${tool%:*}" >/dev/null || apt-get install -qq -y --no-install-recommends "${tool#*:}" >/dev/null 2>&1 || true
  command -v "${tool%:*}" >/dev/null || left_out "${tool%:*} is not here (Debian: ${tool#*:})"
done
unshare --mount --pid --fork true 2>/dev/null || left_out "this machine gives no namespaces"

dir=$(mktemp -d)
root="$dir/root"
machine=
end() {
  if [ -n "$machine" ]; then
    kill "$machine" 2>/dev/null || true
    wait "$machine" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap end EXIT

codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,adduser,init-system-helpers,curl \
  "$codename" "$root" >"$dir/debootstrap.log" 2>&1 ||
  left_out "debootstrap made no Debian: $(tail -1 "$dir/debootstrap.log")"
cp "$package" "$root/root/treering.deb"

systemd-nspawn -D "$root" --boot --register=no --keep-unit --private-network >"$dir/boot.log" 2>&1 &
machine=$!
leader=
inside() { nsenter --target "$leader" --mount --pid --net --uts --root --wd -- "$@"; }

# Waits until a command succeeds, for about two minutes. Exits with 1 on a timeout.
until_true() {
  for _ in $(seq 240); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.5
  done
  echo "this never came true: $*" >&2
  cat "$dir/boot.log" >&2
  [ -z "$leader" ] || inside journalctl --unit treering --no-pager >&2 || true
  exit 1
}

booted() {
  leader=$(pgrep -P "$machine" | head -1)
  [ -n "$leader" ] && inside systemctl is-system-running | grep -qE 'running|degraded'
}
for _ in $(seq 120); do
  booted && break
  kill -0 "$machine" 2>/dev/null || left_out "systemd does not boot here: $(tail -1 "$dir/boot.log")"
  sleep 0.5
done
booted || left_out "systemd does not boot here"

ready() { inside curl -sf http://127.0.0.1:9464/ready; }
treering() { inside treering "$@" --server http://127.0.0.1:7171; }

inside dpkg -i /root/treering.deb >"$dir/dpkg.log" 2>&1 || { cat "$dir/dpkg.log" >&2; exit 1; }
until_true ready
inside systemctl show treering --property=ActiveState,User,Type | sort
inside stat -c '%U %a %n' /var/lib/treering /var/lib/treering/store /usr/bin/treering

treering append new message user "is it still there?" >/dev/null
there() { treering log @last | grep -q "is it still there"; }
until_true there
echo "installed: it serves, and takes an append"

inside systemctl restart treering
until_true ready
there
echo "restarted: it has what it had"

before=$(inside systemctl show treering --property=MainPID --value)
inside systemctl kill --kill-whom=main --signal=KILL treering
again() { [ "$(inside systemctl show treering --property=MainPID --value)" != "$before" ] && ready; }
until_true again
there
echo "killed: systemd starts it again, and it has what it had"

before=$(inside systemctl show treering --property=MainPID --value)
inside dpkg -i /root/treering.deb >"$dir/dpkg.log" 2>&1 || { cat "$dir/dpkg.log" >&2; exit 1; }
until_true again
there
echo "upgraded: the new program serves the same store"

inside dpkg --purge treering >"$dir/dpkg.log" 2>&1 || { cat "$dir/dpkg.log" >&2; exit 1; }
test -s "$root/var/lib/treering/store/log/MANIFEST"
! inside systemctl is-active --quiet treering
echo "purged: the store stays"
