#!/usr/bin/env bash
# Builds the Debian package of a built program: packaging/deb.sh BINARY [OUT_FOLDER]
#
# Uses dpkg-deb, which every Debian system has. Writes the program's debug information beside the
# package (treering.debug), for `gdb -s` and for symbolising crashes.
set -euo pipefail
binary=$(realpath "$1")
out=$(realpath "${2:-$(dirname "$binary")}")
cd "$(dirname "$0")/.."
here=packaging

version=$("$binary" --version | awk '{print $2}')
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"
umask 022

install -D -m 0755 "$binary" "$root/usr/bin/treering"
objcopy --only-keep-debug "$binary" "$out/treering.debug"
strip --strip-all "$root/usr/bin/treering"
(cd "$out" && objcopy --add-gnu-debuglink=treering.debug "$root/usr/bin/treering")

install -D -m 0644 $here/treering.service "$root/usr/lib/systemd/system/treering.service"
install -D -m 0644 $here/treering.toml "$root/etc/treering/treering.toml"
doc="$root/usr/share/doc/treering"
install -D -m 0644 $here/debian/copyright "$doc/copyright"
install -m 0644 docs/OPERATIONS.md "$doc/"
gzip -9n "$doc/OPERATIONS.md"
install -d "$doc/examples"
install -m 0644 ops/alerts.yml ops/prometheus.yml ops/grafana.json "$doc/examples/"

man="$root/usr/share/man/man1"
install -d "$man"
"$binary" man "$man" >/dev/null
gzip -9n "$man"/*.1
chmod 0644 "$man"/*

complete() {
  install -d "$root/$(dirname "$2")"
  "$binary" completions "$1" >"$root/$2"
}
complete bash usr/share/bash-completion/completions/treering
complete zsh usr/share/zsh/vendor-completions/_treering
complete fish usr/share/fish/vendor_completions.d/treering.fish

# The project has no maintainer address yet; tell lintian to accept the placeholder.
install -d "$root/usr/share/lintian/overrides"
printf '%s\n' 'treering: bogus-mail-host *' 'treering: bogus-mail-host-in-debian-changelog *' \
  >"$root/usr/share/lintian/overrides/treering"

# A minimal changelog that refers to CHANGELOG.md.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
date=$(date -R -u -d "@$SOURCE_DATE_EPOCH")
printf 'treering (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of this version.\n\n -- Treering <treering@localhost.localdomain>  %s\n' \
  "$version" "$date" | gzip -9n >"$doc/changelog.gz"

# Not compressed, so that scanners find it by name.
python3 $here/sbom.py make >"$doc/treering.cdx.json"
python3 $here/notices.py >"$doc/THIRD-PARTY-NOTICES.txt"
gzip -9n "$doc/THIRD-PARTY-NOTICES.txt"

glibc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
install -d -m 0755 "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: treering
Version: $version
Architecture: $arch
Maintainer: Treering <treering@localhost.localdomain>
Section: database
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: adduser, init-system-helpers (>= 1.52), libc6 (>= ${glibc#GLIBC_}), libgcc-s1
Description: event-sourced context storage for LLM agents
 Treering keeps what agents do (messages, tool calls and their results,
 approvals, summaries) as immutable events, and derives everything else:
 conversations as of any moment, forks, search, and the next request to a
 model within its budget.
 .
 This package has the server, which runs as a service, and the command line.
CONTROL
echo /etc/treering/treering.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
  install -m 0755 "$here/debian/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

package="$out/treering_${version}_${arch}.deb"
# Level 3 takes a third of the time of level 6 for 10 % more bytes.
dpkg-deb --root-owner-group -Zxz -z3 --build "$root" "$package" >/dev/null
echo "$package"
