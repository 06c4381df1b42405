#!/bin/sh
# release.sh OUT, run in the repository, writes OUT/starlingd-VERSION-OS-ARCH.tar.gz for each of TARGETS, and OUT/SHA256SUMS. The same
# sources, version, commit, time and Go give the same bytes in any folder and on any machine, so anyone can check a release.
# VERSION, COMMIT and SOURCE_DATE_EPOCH come from git unless they are set, as in a copy without history.
set -eu
out=$1
targets=${TARGETS:-linux/amd64 linux/arm64 darwin/arm64}
version=${VERSION:-$(git describe --tags --always --dirty)}
commit=${COMMIT:-$(git rev-parse HEAD)}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
buildinfo=github.com/starling-kv/starling/node/buildinfo

rm -rf "$out"
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for target in $targets; do
	os=${target%/*} arch=${target#*/}
	name=starlingd-$version-$os-$arch
	mkdir "$tmp/$name"
	cp LICENSE README.md CHANGELOG.md "$tmp/$name/"
	# The builder's environment must not affect the binary. With -trimpath, folders affect only the build id.
	env -u GOEXPERIMENT GOFLAGS= GOWORK=off CGO_ENABLED=0 GOOS="$os" GOARCH="$arch" GOAMD64=v1 GOARM64=v8.0 \
		"${GO:-go}" build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X $buildinfo.Version=$version -X $buildinfo.Commit=$commit" \
		-o "$tmp/$name/starlingd" ./cmd/starlingd
	tar -C "$tmp" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$epoch" -cf "$tmp/$name.tar" "$name"
	gzip -9 -n <"$tmp/$name.tar" >"$out/$name.tar.gz"
	echo "$out/$name.tar.gz"
done
(cd "$out" && sha256sum starlingd-*.tar.gz >SHA256SUMS)
