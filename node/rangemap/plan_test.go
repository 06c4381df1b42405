package rangemap_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

// letters names nodes: a is node 0.
func letters(nodes []dsm.NodeID) string {
	var names []string
	for _, n := range nodes {
		for i := range 26 {
			if id(i) == string(n) {
				names = append(names, string(rune('a'+i)))
			}
		}
	}
	return strings.Join(names, " ")
}

func node(letter string) transport.Address {
	if letter == "" {
		return transport.Address{}
	}
	i := int(letter[0] - 'a')
	return transport.Address{ID: transporttest.ID(i), HostPort: fmt.Sprintf("node%d:1", i)}
}

// TestPlans runs testdata/plans against one map:
//
//	map                              a range per line: its first key (-: none), and its nodes
//	split KEY | merge FIRST | move FIRST [from=NODE] [to=NODE] [least=N] | finish | abort
//
// Each command prints the new map, after it was signed and parsed.
func TestPlans(t *testing.T) {
	datadriven.Walk(t, "testdata/plans", func(t *testing.T, path string) {
		var m *config.StorageNodes
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var next *config.StorageNodes
			var err error
			arg := func() []byte { return []byte(strings.Trim(d.CmdArgs[0].Key, "-")) }
			switch d.Cmd {
			case "map":
				var text strings.Builder
				for line := range strings.Lines(d.Input) {
					f := strings.Fields(line)
					fmt.Fprintf(&text, "[[range]]\nfirst = %q\nnodes = [", strings.Trim(f[0], "-"))
					for _, n := range f[1:] {
						fmt.Fprintf(&text, "%q,", node(n).String())
					}
					text.WriteString("]\n")
				}
				next, err = config.SignFile([]byte(text.String()), chain, key(0))
			case "split":
				next, err = rangemap.Split(m, arg())
			case "merge":
				next, err = rangemap.Merge(m, arg())
			case "move":
				var from, to string
				least := 2
				d.MaybeScanArgs(t, "from", &from)
				d.MaybeScanArgs(t, "to", &to)
				d.MaybeScanArgs(t, "least", &least)
				next, err = rangemap.Move(m, arg(), dsm.NodeID(node(from).ID), node(to), least)
			case "validators":
				var ids []string
				for _, a := range d.CmdArgs {
					ids = append(ids, string(node(a.Key).ID))
				}
				next, err = rangemap.NameValidators(m, ids)
			case "finish":
				next, err = rangemap.Finish(m)
			case "abort":
				next, err = rangemap.Abort(m)
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			if err != nil {
				text := err.Error()
				for i := range 26 {
					text = strings.ReplaceAll(text, id(i), string(rune('a'+i)))
				}
				return text + "\n"
			}
			if d.Cmd != "map" {
				next = signed(t, next)
				require.EqualValues(t, m.Version+1, next.Version)
			}
			m = next
			return show(m)
		})
	})
}

func show(m *config.StorageNodes) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d, %d nodes\n", m.Version, len(m.Addresses))
	for _, id := range m.Validators {
		fmt.Fprintf(&b, "validator %s\n", letters([]dsm.NodeID{dsm.NodeID(id)}))
	}
	for i := range m.Ranges.Len() {
		s := m.Ranges.Shard(i)
		fmt.Fprintf(&b, "%v at %s", s.Range, letters(s.Replicas))
		for _, l := range m.Leaving {
			if l.Range.Equal(s.Range) {
				fmt.Fprintf(&b, "; leaving: %s", letters(l.Replicas))
			}
		}
		b.WriteString("\n")
	}
	for _, s := range m.Next {
		fmt.Fprintf(&b, "next %v at %s\n", s.Range, letters(s.Replicas))
	}
	return b.String()
}
