#!/bin/sh
# Builds the Debian package of the module that `make build` left, and prints where it is:
# target/package/redis-rl_<version>_<architecture>.deb.
#
#   packaging/build-deb.sh [library]
#
# It needs dpkg-deb and readelf (binutils, which a Rust build has anyway), no root and no network.
# The environment may set CARGO_TARGET_DIR (target), DEB_REVISION (1), DEB_MAINTAINER and SOURCE_DATE_EPOCH.
set -eu

cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
library=${1:-$target/release/libredis_rl.so}
[ -f "$library" ] || { echo "no module at $library: run make build first" >&2; exit 1; }

name=redis-rl
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)-${DEB_REVISION:-1}
architecture=$(dpkg --print-architecture)
maintainer=${DEB_MAINTAINER:-The redis-rl authors <redis-rl@example.invalid>}
# The same sources give the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

# What the library needs: glibc at the version whose symbols it names, and libgcc for unwinding.
unexpected=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -v -x -e 'libc\.so\.6' -e 'libm\.so\.6' -e 'libgcc_s\.so\.1' -e 'ld-linux-.*' || true)
[ -z "$unexpected" ] || { echo "no package is known for $unexpected: add it to Depends" >&2; exit 1; }
glibc=$(readelf -V "$library" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1 | cut -d_ -f2)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
chmod 0755 "$root"

# The server refuses a module without execute permission. Debian's unit files let a server map code from
# /usr/lib alone.
install -D -m 0755 "$library" "$root/usr/lib/redis/modules/libredis_rl.so"

# The documents keep their places to one another, so that their links lead somewhere.
doc=usr/share/doc/$name
for file in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md $(find docs lua-reference -type f); do
  [ ! -f "$file" ] || install -D -m 0644 "$file" "$root/$doc/$file"
done
install -D -m 0644 packaging/README.Debian "$root/$doc/README.Debian"
install -D -m 0644 LICENSE "$root/$doc/copyright"
ln -s copyright "$root/$doc/LICENSE"

install -D -m 0755 packaging/prerm "$root/DEBIAN/prerm"
(cd "$root" && find usr -type f | LC_ALL=C sort | xargs md5sum) > "$root/DEBIAN/md5sums"
cat > "$root/DEBIAN/control" <<CONTROL
Package: $name
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $glibc), libgcc-s1
Recommends: redis-server (>= 5:7.0) | valkey-server
Enhances: redis-server, valkey-server
Section: database
Priority: optional
Description: rate limiting as commands of Redis and Valkey
 A module that decides rate limits inside the server, in one round trip:
 RL.TOKENBUCKET, RL.SLIDING and RL.ALL, each with a read-only form.
 .
 Installing the package does not load the module: see
 /usr/share/doc/redis-rl/README.Debian for the line that does.
CONTROL

mkdir -p "$target/package"
package=$target/package/${name}_${version}_${architecture}.deb
dpkg-deb --build --root-owner-group "$root" "$package" >/dev/null
echo "$package"
