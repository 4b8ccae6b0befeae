#!/usr/bin/env bash
# Checks the systemd unit and the Debian package: .ci/package.sh BINARY
#
# The unit must be valid and hardened. The Debian package must build and pass lintian, its program
# must serve and notify systemd, it must run under systemd, and its bill of materials must be right.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "$1")

need() {
  command -v "$1" >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get install -qq -y --no-install-recommends "$2" >/dev/null 2>&1 || true
  fi
  command -v "$1" >/dev/null || { echo "$1 is not here (Debian: $2): its check is left out" >&2; return 1; }
}

dir=$(mktemp -d)
server=
end() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap end EXIT

echo "-- the unit"
if need systemd-analyze systemd; then
  # Points the unit at this binary and drops its documentation: neither is installed here.
  sed -e "s#/usr/bin/treering#$binary#" -e '/^Documentation=/d' packaging/treering.service >"$dir/treering.service"
  said=$(systemd-analyze verify "$dir/treering.service" 2>&1) || true
  if [ -n "$said" ]; then
    echo "$said" >&2
    exit 1
  fi
  exposure=$(systemd-analyze security --no-pager --offline=true --threshold=20 "$dir/treering.service" | tail -1)
  echo "$exposure"
fi

echo "-- the Debian package"
package=$(bash packaging/deb.sh "$binary" "$dir" | tail -1)
ls -l "$package" | awk '{print $5, "bytes"}'
if need lintian lintian; then
  lintian --allow-root --fail-on error,warning "$package"
fi
root="$dir/root"
dpkg-deb -x "$package" "$root"
"$root/usr/bin/treering" config check "$root/etc/treering/treering.toml"
for page in treering treering-serve; do
  test -s "$root/usr/share/man/man1/$page.1.gz"
done
python3 packaging/sbom.py check "$root/usr/share/doc/treering/treering.cdx.json"
bash -n "$root/usr/share/bash-completion/completions/treering"
for script in postinst prerm postrm; do
  dpkg-deb -I "$package" "$script" >"$dir/$script"
  sh -n "$dir/$script"
done

echo "-- its program, as systemd starts it"
python3 .ci/notified.py "$root/usr/bin/treering" "$dir/store"

if need man man-db; then
  LC_ALL=C.UTF-8 man --warnings -l "$root/usr/share/man/man1/treering.1.gz" >/dev/null 2>"$dir/man"
  if [ -s "$dir/man" ]; then
    cat "$dir/man" >&2
    exit 1
  fi
fi

echo "-- the package, installed where systemd runs"
bash .ci/installed.sh "$package"
