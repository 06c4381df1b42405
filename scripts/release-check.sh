#!/bin/sh
# release-check.sh, run in the repository, makes a release in two copies of the sources, in folders of different names, and compares them
# byte for byte. TARGETS as for release.sh, default linux/amd64.
set -eu
export TARGETS="${TARGETS:-linux/amd64}"
VERSION=$(git describe --tags --always --dirty) COMMIT=$(git rev-parse HEAD) SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export VERSION COMMIT SOURCE_DATE_EPOCH
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for copy in one another/of-a-longer-name; do
	mkdir -p "$tmp/$copy"
	git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -C "$tmp/$copy" -xf -
done
(cd "$tmp/one" && scripts/release.sh build/release)
# The second build does not use compiled packages of the first.
(cd "$tmp/another/of-a-longer-name" && umask 077 && GOCACHE="$tmp/cache" scripts/release.sh build/release)
cmp "$tmp/one/build/release/SHA256SUMS" "$tmp/another/of-a-longer-name/build/release/SHA256SUMS"
cat "$tmp/one/build/release/SHA256SUMS"
echo 'release-check: both copies gave the same bytes'
