#!/usr/bin/env bash
# Compares the CPU time of starling-bench between two revisions:
#
#	scripts/compare.sh BEFORE AFTER ARG ...
#	PAIRS=9 scripts/compare.sh v1.0.0 HEAD sync --keys 200000 --against "" --repeat 1
#
# Both are built first, in checkouts of their own that are removed afterwards, then run in turns
# (starling-bench compare). Environment: PAIRS (7), WARM_UP (1), JSON (a file for the result), GO.
set -euo pipefail
if [ $# -lt 3 ]; then
	sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
	exit 2
fi
before=$1 after=$2
shift 2
go=${GO:-go}
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
cleanup() {
	for side in before after; do
		git -C "$top" worktree remove --force "$work/$side" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap cleanup EXIT
for side in before after; do
	git -C "$top" worktree add --quiet --detach "$work/$side" "${!side}"
	(cd "$work/$side/bench" && "$go" build -o "$work/bench-$side" .)
done
(cd "$top/bench" && "$go" build -o "$work/compare" .)
echo "before: $(git -C "$work/before" log -1 --format='%h %s')"
echo "after:  $(git -C "$work/after" log -1 --format='%h %s')"
"$work/compare" compare --pairs "${PAIRS:-7}" --warm-up "${WARM_UP:-1}" --json "${JSON:-}" \
	"$work/bench-before" "$work/bench-after" -- "$@"
