#!/usr/bin/env bash
# Builds the tests that need RDMA with cgo, and runs them in a VM: Debian's kernel with two Soft-RoCE devices in QEMU. A missing
# prerequisite, or a VM that does not boot, is reported in a line "NOT RUN: …" and is not a failure.
#
# With arguments it runs only the named ones of: verbs paths join relay.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin" # ldconfig
cd "$(dirname "$0")/../../.."
guest=transport/rdma/guest/rdma-guest
go=${GO:-go}

skip() { echo "NOT RUN: the tests of RDMA ($1)"; exit 0; }
[ "$(uname -s)" = Linux ] || skip "not Linux"
command -v "${CC:-gcc}" >/dev/null || skip "no C compiler here"
command -v qemu-system-x86_64 >/dev/null || [ "$(id -u)" = 0 ] || skip "no QEMU here, and not root to install it"
prepared=0
$guest --prepare || prepared=$?
[ $prepared != 122 ] || skip "a prerequisite is missing; see above"
[ $prepared = 0 ] || exit 1
library=$(ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -1)
[ -n "$library" ] && [ -e /usr/include/infiniband/verbs.h ] || skip "no libibverbs-dev here"

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

# The VM runs a test binary, with additional files. Its emulated processors sometimes crash the kernel (125), which is not the fault of
# the test, so the test is run once more. The same applies if the VM does not boot (123) although it did before.
booted=""
run() { # name, test binary, arguments of rdma-guest…
  local name=$1 test=$2 status attempt from=$SECONDS
  shift 2
  for attempt in 1 2; do
    status=0
    $guest --timeout 1080 --file "$test:/root/rdma.test" --file "$library" "$@" >"$build/out" || status=$?
    grep -v -e '^=== ' -e '^ *--- PASS: .*/' "$build/out" || true
    case $status in
    125) echo "test-rdma: the VM crashed (attempt $attempt of 2)" ;;
    123) [ -n "$booted" ] || skip "the VM did not boot; its log is above" ;;
    *) break ;;
    esac
  done
  [ $status = 0 ] || { echo "test-rdma: $name: exit status $status"; exit 1; }
  booted=yes
  echo "test-rdma: $name: $((SECONDS - from)) s"
}

of_package() { # name, package, tests that need the VM
  CGO_ENABLED=1 $go vet -tags rdma "./$2"
  CGO_ENABLED=1 $go test -tags rdma -c -o "$build/test" "./$2"
  # Only this test, of a host without devices, runs outside of the VM; `make test` runs the others.
  (cd "$2" && env -u RDMA_GUEST "$build/test" -test.run '^TestNoDevices$')
  run "$1" "$build/test" -- ./rdma.test -test.v -test.timeout 9m -test.run "$3"
}

verbs() { of_package verbs transport/rdma/internal/verbs .; }
paths() { of_package paths transport/rdma '^TestGuest'; } # the others need no device

# Each test has its own network of processes and its own VM, so that it does not use up the time of another.
nodes() { # name, test
  if [ ! -e "$build/nodes" ]; then
    CGO_ENABLED=1 $go build -tags rdma,noevm -trimpath -buildvcs=false -ldflags '-s -w' -o "$build/" ./cmd/starlingd ./e2e/byzantine
    CGO_ENABLED=0 $go test -ldflags '-s -w' -c -o "$build/nodes" ./e2e/guest
  fi
  run "$1" "$build/nodes" --mem 3072 --file "$build/starlingd" --file "$build/byzantine" -- ./rdma.test -test.v -test.timeout 17m -test.run "^$2\$"
}
join() { nodes join TestJoinWithALiar; }
relay() { nodes relay TestRelayWhilePathsBreak; }

for what in "${@:-verbs paths join relay}"; do
  for one in $what; do $one; done
done
