package avlstar

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar/record"
)

// TestScripts runs testdata/tree, which records the shape of the tree after each block. After an
// intended change:
//
//	go test ./avlstar -run TestScripts -rewrite
//
// Commands:
//
//	new chunk-bytes=N      begins with the empty tree
//	apply                  one block, a line each: "put KEY VALUE", "put KEY VALUE*COUNT" or "del KEY";
//	                       prints the tree
//	new-inner              inner nodes that the last block made or moved, which are written to disk
//	manifest               the manifest, decoded
//	chunk N                the records of a chunk: height key=value
//	update first=K after=K the update of the last block for a replica of a range; prints it and, once it
//	                       is replayed, the replica; a node made by the replay has an asterisk
//
// The tree is printed as
//
//	KEY hHEIGHT BYTES      an inner node, its children below it; "| chunk N" marks the root of a chunk
//	KEY=VALUE              a leaf
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/tree", func(t *testing.T, path string) {
		var v, base *Version
		var block []Change
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "new":
				var chunkBytes uint64
				d.ScanArgs(t, "chunk-bytes", &chunkBytes)
				var err error
				if v, err = Empty(chunkBytes); err != nil {
					return err.Error()
				}
				return ""
			case "apply":
				block = parseChanges(t, d)
				next, err := v.Apply(block)
				if err != nil {
					return err.Error()
				}
				v, base = next, v
				requireInvariants(t, v)
				requireRoundTrip(t, v)
				return drawTree(v)
			case "new-inner":
				var b strings.Builder
				for key, height := range v.NewInner(base) {
					fmt.Fprintf(&b, "%s h%d\n", key, height)
				}
				return b.String()
			case "update":
				var r KeyRange
				for _, arg := range d.CmdArgs {
					switch arg.Key {
					case "first":
						r.First = []byte(arg.Vals[0])
					case "after":
						r.After = []byte(arg.Vals[0])
					}
				}
				u := mustUpdate(t, v, base, r, block)
				p, err := mustReplica(t, base, r).Replay(r, u)
				if err != nil {
					return err.Error()
				}
				require.Equal(t, v.Commitment(), p.Commitment())
				return drawUpdate(t, base, u) + drawReplica(p)
			case "manifest":
				var b strings.Builder
				for k, e := range v.Manifest().Entries {
					fmt.Fprintf(&b, "chunk %d: boundary %d, h%d %dB\n", k, e.BoundaryHeight, e.Root.Height, e.Root.Bytes)
				}
				return b.String()
			case "chunk":
				k, err := strconv.ParseUint(d.CmdArgs[0].Key, 10, 32)
				if err != nil {
					return err.Error()
				}
				rest, err := v.Chunk(uint32(k))
				if err != nil {
					return err.Error()
				}
				var b strings.Builder
				for len(rest) > 0 {
					var l Leaf
					if l, rest, err = record.Decode(rest); err != nil {
						return err.Error()
					}
					fmt.Fprintf(&b, "%d %s=%s\n", l.Height, l.Key, shorten(l.Value))
				}
				return b.String()
			}
			d.Fatalf(t, "unknown command")
			return ""
		})
	})
}

func parseChanges(t *testing.T, d *datadriven.TestData) (changes []Change) {
	for line := range strings.Lines(d.Input) {
		switch f := strings.Fields(line); {
		case len(f) == 2 && f[0] == "del":
			changes = append(changes, Change{Key: []byte(f[1])})
		case len(f) == 3 && f[0] == "put":
			value, count, repeated := strings.Cut(f[2], "*")
			if repeated {
				n, err := strconv.Atoi(count)
				if err != nil {
					d.Fatalf(t, "%s: %v", line, err)
				}
				value = strings.Repeat(value, n)
			}
			changes = append(changes, Change{[]byte(f[1]), []byte(value)})
		default:
			d.Fatalf(t, "not a change: %s", line)
		}
	}
	return changes
}

func drawUpdate(t *testing.T, base *Version, u Update) string {
	var b strings.Builder
	touched, err := u.touched(base, KeyRange{})
	require.NoError(t, err)
	for _, c := range touched {
		switch {
		case c.deleted:
			fmt.Fprintf(&b, "del %s\n", c.key)
			continue
		case c.value != nil:
			fmt.Fprintf(&b, "put %s=%s", c.key, shorten(c.value))
		default:
			fmt.Fprintf(&b, "%s", c.key)
		}
		fmt.Fprintf(&b, " h%d\n", c.height)
	}
	b.WriteString("boundary proof:")
	before, behind, err := mustDecodeMultiproof(t, u.Boundary, nil).outside(u.To, KeyRange{First: []byte{0xff}})
	require.NoError(t, err)
	for i, it := range append(before, behind...) {
		key := string(it.key)
		if i == 0 && it.value == nil {
			key = "-"
		}
		if b.WriteString(" " + key); it.value == nil {
			fmt.Fprintf(&b, "(h%d)", it.stub.Height)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// drawReplica draws what a partial tree has in memory, and its stubs.
func drawReplica(p *Partial) string {
	if p.v.top == emptyStub {
		return "empty\n"
	}
	var b strings.Builder
	var draw func(s sub, indent string)
	draw = func(s sub, indent string) {
		b.WriteString(indent)
		made := ""
		if s.n != 0 && p.v.epochOf(s.n) > 0 {
			made = " *"
		}
		switch {
		case s.n == 0:
			fmt.Fprintf(&b, "stub h%d %dB\n", s.Height, s.Bytes)
		case s.n.isLeaf():
			key, value := p.v.leaf(s.n)
			fmt.Fprintf(&b, "%s=%s%s\n", key, shorten(value), made)
		default:
			fmt.Fprintf(&b, "%s h%d %dB%s\n", p.v.keyOf(s.n), s.Height, s.Bytes, made)
			draw(p.v.child(s.n, left), indent+"  ")
			draw(p.v.child(s.n, right), indent+"  ")
		}
	}
	draw(sub{p.v.top, p.v.root}, "")
	return b.String()
}

func drawTree(v *Version) string {
	if v.root == 0 {
		return "empty\n"
	}
	var b strings.Builder
	chunks := 0
	var draw func(s sub, indent string, inChunk bool)
	draw = func(s sub, indent string, inChunk bool) {
		b.WriteString(indent)
		if s.n.isInner() {
			fmt.Fprintf(&b, "%s h%d %dB", v.keyOf(s.n), s.Height, s.Bytes)
		} else {
			key, value := v.leaf(s.n)
			fmt.Fprintf(&b, "%s=%s", key, shorten(value))
		}
		if !inChunk && isSmall(s.Stat, v.chunkBytes) {
			inChunk = true
			fmt.Fprintf(&b, " | chunk %d", chunks)
			chunks++
		}
		b.WriteByte('\n')
		if s.n.isInner() {
			draw(v.child(s.n, left), indent+"  ", inChunk)
			draw(v.child(s.n, right), indent+"  ", inChunk)
		}
	}
	draw(sub{v.top, v.root}, "", false)
	return b.String()
}

func shorten(value []byte) string {
	if len(value) > 8 {
		return fmt.Sprintf("%.4s…(%d)", value, len(value))
	}
	return string(value)
}
