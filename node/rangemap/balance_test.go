package rangemap_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
)

// TestPropose runs the files in testdata/balance:
//
//	propose [spare=NODES] [down=NODES] [unsigned] [changing]
//	FIRST NODES [mib=N] [reads=N] [changes=N] [middle=KEY] [fetching=NODE]     a range per line; -: the first key
//
// Figures are those of each replica, traffic is by the second. The output is that of the command,
// with letters for nodes.
func TestPropose(t *testing.T) {
	datadriven.Walk(t, "testdata/balance", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var spare []transport.Address
			var text strings.Builder
			fields := func(line string) map[string]string {
				all := map[string]string{}
				for _, f := range strings.Fields(line)[2:] {
					name, value, _ := strings.Cut(f, "=")
					all[name] = value
				}
				return all
			}
			lines := strings.Split(strings.TrimSpace(d.Input), "\n")
			for _, line := range lines {
				f := strings.Fields(line)
				fmt.Fprintf(&text, "[[range]]\nfirst = %q\nnodes = [", strings.Trim(f[0], "-"))
				for _, n := range f[1] {
					fmt.Fprintf(&text, "%q,", node(string(n)).String())
				}
				text.WriteString("]\n")
			}
			m, err := config.ParseStorageNodes([]byte(text.String()))
			require.NoError(t, err)
			if !d.HasArg("unsigned") {
				m = signed(t, m1(m))
			}
			if d.HasArg("changing") {
				m, err = rangemap.Split(m, []byte("zz"))
				require.NoError(t, err)
			}
			reports := map[dsm.NodeID]rangemap.Report{}
			for n := range m.Addresses {
				reports[n] = rangemap.Report{}
			}
			for i, line := range lines {
				s, f := m.Ranges.Shard(i), fields(line)
				number := func(name string) uint64 {
					n, _ := strconv.ParseUint("0"+f[name], 10, 64)
					return n
				}
				for _, n := range s.Replicas {
					if f["fetching"] != "" && n == dsm.NodeID(node(f["fetching"]).ID) {
						continue
					}
					r := reports[n]
					r.Loads = append(r.Loads, dsm.Load{
						Range: s.Range, Bytes: number("mib") << 20, Reads: 10 * number("reads"), Changes: 10 * number("changes"), Middle: []byte(f["middle"]),
					})
					reports[n] = r
				}
			}
			for _, arg := range d.CmdArgs {
				for _, value := range arg.Vals {
					for _, n := range value {
						a := node(string(n))
						switch arg.Key {
						case "spare":
							spare = append(spare, a)
							reports[dsm.NodeID(a.ID)] = rangemap.Report{}
						case "down":
							reports[dsm.NodeID(a.ID)] = rangemap.Report{Error: "no answer"}
						}
					}
				}
			}
			b := rangemap.Propose(m, spare, reports, 10*time.Second)
			require.Equal(t, b, rangemap.Propose(m, spare, reports, 10*time.Second), "the same input")
			var out strings.Builder
			for _, n := range b.Nodes {
				fmt.Fprintf(&out, "%s: %d ranges, %d MiB, %d keys/s\n", n.Node, n.Ranges, n.Bytes>>20, n.Traffic)
			}
			for _, note := range b.Notes {
				fmt.Fprintln(&out, "note:", note)
			}
			for _, p := range b.Proposals {
				fmt.Fprintf(&out, "%s %s: %s\n  %s\n", p.Change, p.Range, p.Reason, p.Command)
			}
			if len(b.Proposals) == 0 {
				out.WriteString("nothing\n")
			}
			shown := out.String()
			for i := range 26 {
				letter := string(rune('a' + i))
				shown = strings.ReplaceAll(strings.ReplaceAll(shown, node(letter).String(), letter), id(i), letter)
			}
			return shown
		})
	})
}

// m1 gives an unsigned map a chain.
func m1(m *config.StorageNodes) *config.StorageNodes {
	c := *m
	c.Version, c.ChainID = 1, chain
	return &c
}

// The commands name any key so that a shell and ParseKey return it.
func TestProposedKeys(t *testing.T) {
	for middle, want := range map[string]string{"g": "g", "a b": "'a b'", "-x": "0x2d78", "it's": `'it'\''s'`, "\x00\xff": "0x00ff", "0x12": "0x30783132"} {
		text := fmt.Sprintf("[[range]]\nfirst = \"\"\nnodes = [%q, %q]\n", node("a").String(), node("b").String())
		m, err := config.SignFile([]byte(text), chain, key(0))
		require.NoError(t, err)
		load := dsm.Load{Range: m.Ranges.Shard(0).Range, Bytes: 1 << 30, Middle: []byte(middle)}
		reports := map[dsm.NodeID]rangemap.Report{}
		for _, n := range []string{"a", "b"} {
			reports[dsm.NodeID(node(n).ID)] = rangemap.Report{Loads: []dsm.Load{load}}
		}
		spare := node("c")
		reports[dsm.NodeID(spare.ID)] = rangemap.Report{}
		b := rangemap.Propose(m, []transport.Address{spare}, reports, time.Second)
		require.Equal(t, "starlingd storage ranges split "+want, b.Proposals[0].Command)
	}
}
