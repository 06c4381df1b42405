#!/usr/bin/env bash
# Compares the CPU time of starling-bench between two revisions:
#
#	scripts/compare.sh BEFORE AFTER ARG ...
#	PAIRS=9 scripts/compare.sh v1.0.0 HEAD sync --keys 200000 --against "" --repeat 1
#
# Both are built first, in temporary checkouts. Then they run in turns, and the one that ran second begins
# the next pair, so that drift of the machine's speed favours neither. The script prints user and system time
# of the whole process trees, and the ratio AFTER / BEFORE of each pair with the median.
# Environment: PAIRS (7), GO.
set -euo pipefail
if [ $# -lt 3 ]; then
	sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
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
	echo "$side: $(git -C "$work/$side" log -1 --format='%h %s')"
done

TIMEFORMAT='%U %S'
cpu() { # side, arguments: seconds of user and system time together
	local side=$1
	shift
	{ time "$work/bench-$side" "$@" >"$work/output" 2>&1; } 2>"$work/time" || { cat "$work/output" >&2; exit 1; }
	awk '{ print $1 + $2 }' "$work/time"
}

pairs=${PAIRS:-7}
for ((i = 0; i <= pairs; i++)); do # the first pair warms up
	if ((i % 2)); then
		a=$(cpu after "$@") b=$(cpu before "$@")
	else
		b=$(cpu before "$@") a=$(cpu after "$@")
	fi
	if ((i > 0)); then
		awk -v i="$i" -v b="$b" -v a="$a" 'BEGIN { printf "pair %d: before %.2f s, after %.2f s, ratio %.3f\n", i, b, a, a / b }' | tee -a "$work/pairs"
	fi
done
sort -k10 -n "$work/pairs" | awk '{ r[NR] = $10 } END { printf "median of %d pairs: %.3f, from %.3f to %.3f\n", NR, (r[int((NR + 1) / 2)] + r[int(NR / 2) + 1]) / 2, r[1], r[NR] }'
