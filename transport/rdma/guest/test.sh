#!/usr/bin/env bash
# Builds the tests that need RDMA with cgo, and runs them in the guest: Debian's kernel with two Soft-RoCE devices in QEMU. What is
# missing here is named in a line "NOT RUN: …", and is no failure.
set -euo pipefail
cd "$(dirname "$0")/../../.."
guest=transport/rdma/guest/rdma-guest
packages=(transport/rdma/internal/verbs transport/rdma)

declare -A run=([transport/rdma/internal/verbs]=. [transport/rdma]='^TestGuest') # the others need no device

skip() { echo "NOT RUN: the tests of RDMA ($1)"; exit 0; }
[ "$(uname -s)" = Linux ] || skip "no Linux"
command -v "${CC:-gcc}" >/dev/null || skip "no C compiler here"
command -v qemu-system-x86_64 >/dev/null || [ "$(id -u)" = 0 ] || skip "no QEMU here, and not root to install it"
$guest --prepare || skip "the guest cannot be built"
library=$(ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -1)
[ -n "$library" ] && [ -e /usr/include/infiniband/verbs.h ] || skip "no libibverbs-dev here"

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
for package in "${packages[@]}"; do
  CGO_ENABLED=1 ${GO:-go} vet -tags rdma "./$package"
  CGO_ENABLED=1 ${GO:-go} test -tags rdma -c -o "$build/test" "./$package"
  # What the library reports where there is no device; but for that the tests without a guest are those of `make test`.
  (cd "$package" && env -u RDMA_GUEST "$build/test" -test.run '^TestNoDevices$')
  $guest --timeout 600 --file "$build/test:/root/rdma.test" --file "$library" -- ./rdma.test -test.v -test.timeout 9m -test.run "${run[$package]}" |
    grep -v -e '^=== ' -e '^ *--- PASS: .*/'
done
