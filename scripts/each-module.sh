#!/usr/bin/env bash
# Runs a command in the folder of each named Go module, and prints its duration.
#
#	scripts/each-module.sh "cosmos cosmos/oracle" go test ./...
set -euo pipefail
modules=$1; shift
if [ -z "$modules" ]; then echo "each-module: no modules are named; make finds them only in a clone of the repository" >&2; exit 1; fi
for module in $modules; do
  from=$SECONDS
  echo "=== $module: $*"
  (cd "$module" && "$@")
  echo "=== $module: $(((SECONDS - from) / 60)) min $(((SECONDS - from) % 60)) s"
done
