package opsbench

import (
	"fmt"
	"io"

	"github.com/starling-kv/starling/bench/harness"
)

// Print writes a table with a row for each store, and explains it.
func Print(out io.Writer, keys int, stores map[string]Figures) {
	rows := [][]string{{harness.Count(keys, "key"), "commit", "p99", "set", "one core", "get", "iterate", "proof", "open", "memory"},
		{"", "ms", "ms", "ms", "ms", "ns", "ns", "µs", "s", "B/key"}}
	for _, name := range Names {
		f, measured := stores[name]
		if !measured {
			continue
		}
		row := []string{name}
		for _, v := range []struct {
			value  float64
			digits int
		}{{f.CommitP50MS, 2}, {f.CommitP99MS, 2}, {f.SetMS, 2}, {f.OneCoreMS, 2}, {f.GetNS, 0}, {f.IterateNS, 0}, {f.ProofUS, 1}, {f.OpenS, 2}, {f.BytesPerKey, 0}} {
			row = append(row, fmt.Sprintf("%.*f", v.digits, v.value))
		}
		rows = append(rows, row)
	}
	harness.PrintAligned(out, rows)
	for _, pair := range [][2]string{
		{Starling, Memiavl}, {Starling, MemiavlSynced}, {StarlingUnsynced, MemiavlLogged}, {StarlingTree, MemiavlTree}, {Starling, IAVL},
	} {
		ours, a := stores[pair[0]]
		theirs, b := stores[pair[1]]
		if a && b {
			fmt.Fprintf(out, "  commit  %s over %s: %.2f×, on one core each %.2f×\n", pair[1], pair[0],
				harness.Ratio(theirs.CommitP50MS, ours.CommitP50MS), harness.Ratio(theirs.OneCoreMS, ours.OneCoreMS))
		}
	}
	fmt.Fprint(out, `
A commit is 1,000 sorted changes (80 % updates, 15 % inserts, 5 % deletes), each a Set or Delete, then the app hash and Commit.
In it, starling and iavl sync a batch of the SDK's database (goleveldb). memiavl itself never syncs its log: a goroutine writes it,
or, with "log in commit", the commit. With "log synced", we sync the log after each commit, which is as durable as starling. "not synced"
is starling over a database whose WriteSync is Write, as durable as memiavl's log in the commit. The trees alone have no log and no
multi-store. Times are medians; gets, entries and proofs alternate between stores.
"open" is a new process: IAVL loads no nodes, memiavl maps the snapshot that it has just made, ours reads all leaves into memory.
memory: anonymous, after the load. memiavl's proof excludes the SDK's query around it.
`)
}
