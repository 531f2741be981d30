#!/bin/sh
# Checks a package without installing it: what is in it, and that a server loads the module that is in it.
#
#   packaging/check-deb.sh target/package/redis-rl_<version>_<architecture>.deb
#
# The environment may set REDIS_SERVER (redis-server) and PORT.
set -eu

package=$1
server=${REDIS_SERVER:-redis-server}
port=${PORT:-$((20000 + $$ % 10000))}
module=usr/lib/redis/modules/libredis_rl.so

root=$(mktemp -d)
pid=
finish() {
  if [ -n "$pid" ]; then
    kill "$pid" 2>/dev/null || true
    wait "$pid" || true
  fi
  rm -rf "$root"
}
trap finish EXIT

fail() { echo "$package: $1" >&2; exit 1; }

dpkg-deb -x "$package" "$root"
dpkg-deb -e "$package" "$root/DEBIAN"

doc=usr/share/doc/redis-rl
for file in "$module" "$doc/copyright" "$doc/README.Debian" "$doc/docs/commands/rl.tokenbucket.md"; do
  [ -f "$root/$file" ] || fail "$file is missing"
done
[ -x "$root/$module" ] || fail "$module has no execute permission, which the server asks for"
dpkg-deb --contents "$package" | grep -v ' root/root ' && fail 'a file is not root'\''s'
(cd "$root" && md5sum --quiet --check DEBIAN/md5sums) || fail 'a checksum is wrong'

# The line of README.Debian, but for where the package was unpacked.
sed -n "s|^ *loadmodule /|loadmodule $root/|p" "$root/$doc/README.Debian" > "$root/server.conf"
printf 'port %s\nbind 127.0.0.1\nsave ""\ndir %s\n' "$port" "$root" >> "$root/server.conf"
"$server" "$root/server.conf" > "$root/server.log" 2>&1 &
pid=$!
reply=
for _ in $(seq 100); do
  reply=$(redis-cli -p "$port" RL.TOKENBUCKET k 10 1 NOW 0 2>/dev/null | tr '\n' ' ') && [ -n "$reply" ] && break
  kill -0 "$pid" 2>/dev/null || { cat "$root/server.log" >&2; fail 'the server did not start'; }
  sleep 0.1
done
[ "$reply" = '1 9 1 0 ' ] || { cat "$root/server.log" >&2; fail "the module answered '$reply'"; }
echo "$package: $("$server" --version | cut -d' ' -f1-3) loads it and it answers"
