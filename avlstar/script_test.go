package avlstar

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/starling-kv/starling/avlstar/record"
)

// TestScripts runs testdata/tree: what the tree looks like after each block. After an intended
// change:
//
//	go test ./avlstar -run TestScripts -rewrite
//
// Commands:
//
//	new chunk-bytes=N      begins with the empty tree
//	apply                  one block, a line each: "put KEY VALUE", "put KEY VALUE*COUNT" or "del KEY";
//	                       prints the tree
//	new-inner              inner nodes that the last block made or moved: what goes to disk
//	manifest               the manifest, decoded
//	chunk N                the records of a chunk: height key=value
//
// The tree is printed as
//
//	KEY hHEIGHT BYTES      an inner node, its children below it; "| chunk N" marks the root of a chunk
//	KEY=VALUE              a leaf
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/tree", func(t *testing.T, path string) {
		var v, base *Version
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
				next, err := v.Apply(parseChanges(t, d))
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
