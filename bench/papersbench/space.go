package papersbench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
)

// spaceOptions configure a run of both chunkings.
type spaceOptions struct {
	Keys  int
	Limit int // C_p, in leaves
	Seed  uint64
}

// Flags adds the options of avlstar/space.
func (o *spaceOptions) Flags(f *harness.Flags) {
	f.Int(&o.Keys, "keys", 100_000, 1000, 100_000_000, "number of keys after the inserts")
	f.Int(&o.Limit, "limit", 1000, 2, 1_000_000, "maximum number of leaves of a chunk")
	f.Seed(&o.Seed)
}

const (
	spaceKey   = 20
	spaceValue = 100
	// spaceBlock is the number of operations in a block; spaceSamples is that of points of a phase.
	spaceBlock   = 1000
	spaceSamples = 10
)

// spacePhases are the phases of a run; ops is relative to the number of keys.
var spacePhases = []struct {
	name                    string
	ops                     float64
	insert, remove, updates int // of ten operations
}{
	{"inserts", 1, 10, 0, 0},
	{"updates", 0.2, 0, 0, 10},
	{"deletes of three quarters", 0.75, 0, 10, 0},
	{"churn (a delete for each insert)", 1, 5, 5, 0},
}

// spacePhase has the figures of a phase.
type spacePhase struct {
	Name string  `json:"name"`
	Ops  int     `json:"ops"`
	Keys int     `json:"keys"` // at the end
	Ours float64 `json:"ours"` // space efficiency at the end
	// The paper's chunks: space efficiency at the end, hashes and copied leaves per operation.
	Theirs   float64 `json:"theirs"`
	Hashes   float64 `json:"hashes"`
	Copied   float64 `json:"copied"`
	Plain    float64 `json:"plain_hashes"` // without chunk ids in the hashes, as ours
	Splits   int     `json:"splits"`
	Rotation int     `json:"splits_before_rotations"`
}

// runSpace changes one state in blocks, with the paper's chunks and with ours, and compares the
// numbers of chunks with the ideal ones.
func runSpace(ctx context.Context, commands []string, progress *harness.Progress) (*outcome, error) {
	o, err := parse[spaceOptions](commands[0])
	if err != nil {
		return nil, err
	}
	defer progress.Run()()
	record := avlstar.RecordBytes(spaceKey, spaceValue)
	ours, err := avlstar.Empty(uint64(o.Limit) * record)
	if err != nil {
		return nil, err
	}
	defer func() { ours.Release() }()
	theirs := newChunked(o.Limit)
	keys := make([]string, 0, o.Keys)
	rng := rand.New(rand.NewPCG(o.Seed, 0)) //nolint:gosec // reproducible by its seed
	efficiency := func(chunks int) float64 {
		return float64(chunks) / float64((len(keys)+o.Limit-1)/o.Limit)
	}
	var phases []spacePhase
	lines := []line{{Name: "the paper's chunks (Algorithms 1 to 4)"}, {Name: "Starling's chunks"}}
	total := 0
	for _, phase := range spacePhases {
		ops, splits, rotation := int(phase.ops*float64(o.Keys)), theirs.splits, theirs.rotation
		progress.Begin(phase.name, "operations", ops)
		progress.Working("both chunkings")
		sum := work{}
		for done := 0; done < ops; {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			n := min(spaceBlock, ops-done)
			changes := make([]avlstar.Change, 0, n)
			changed := map[string]bool{}
			for len(changes) < n {
				draw := rng.IntN(10)
				switch {
				case draw < phase.insert:
					key := newKey(rng)
					keys = append(keys, key)
					changed[key] = true
					theirs.insert(key)
					changes = append(changes, avlstar.Change{Key: []byte(key), Value: newValue(rng)})
				default:
					k := rng.IntN(len(keys))
					key := keys[k]
					if changed[key] {
						continue // a block changes a key once
					}
					changed[key] = true
					if draw < phase.insert+phase.remove {
						keys[k] = keys[len(keys)-1]
						keys = keys[:len(keys)-1]
						theirs.remove(key)
						changes = append(changes, avlstar.Change{Key: []byte(key)})
					} else {
						theirs.update(key)
						changes = append(changes, avlstar.Change{Key: []byte(key), Value: newValue(rng)})
					}
				}
			}
			next, err := ours.Apply(changes)
			if err != nil {
				return nil, err
			}
			ours.Release()
			ours = next
			w := theirs.endBlock()
			sum.hashed, sum.plain, sum.copied = sum.hashed+w.hashed, sum.plain+w.plain, sum.copied+w.copied
			before := done * spaceSamples / ops
			done += n
			progress.Add(n)
			if done*spaceSamples/ops != before {
				x := float64(total+done) / float64(o.Keys)
				lines[0].Points = append(lines[0].Points, at(x, efficiency(len(theirs.chunks))))
				lines[1].Points = append(lines[1].Points, at(x, efficiency(int(ours.NumChunks()))))
			}
		}
		total += ops
		if got, want := ours.Len(), uint64(len(keys)); got != want || theirs.leaves != len(keys) {
			return nil, fmt.Errorf("after the %s, Starling's tree has %d keys and the paper's %d, want %d", phase.name, got, theirs.leaves, want)
		}
		phases = append(phases, spacePhase{
			Name: phase.name, Ops: ops, Keys: len(keys), Ours: efficiency(int(ours.NumChunks())), Theirs: efficiency(len(theirs.chunks)),
			Hashes: float64(sum.hashed) / float64(ops), Plain: float64(sum.plain) / float64(ops), Copied: float64(sum.copied) / float64(ops),
			Splits: theirs.splits - splits, Rotation: theirs.rotation - rotation,
		})
	}
	out := spaceOutcome(o, phases, lines, record)
	return out, out.setRaw(phases)
}

func spaceOutcome(o spaceOptions, phases []spacePhase, lines []line, record uint64) *outcome {
	out := &outcome{}
	first := phases[0]
	out.add("space efficiency after the inserts, the paper's chunks", "around 1.4", "%.2f", first.Theirs)
	out.add("space efficiency after the inserts, Starling's chunks", "", "%.2f", first.Ours)
	out.add("splits before a rotation, share of all splits", "around 4 %", "%.1f %% (%d of %d)", 100*harness.Ratio(float64(first.Rotation), float64(first.Splits)), first.Rotation, first.Splits)
	for _, p := range phases[1:] {
		if p.Name != spacePhases[1].name {
			out.add("space efficiency after the "+p.Name, "", "the paper's chunks %.2f, Starling's %.2f", p.Theirs, p.Ours)
		}
	}
	for _, p := range phases {
		out.add("hashes per operation, "+p.Name, "", "%.2f with the paper's chunk ids in the hashes, %.2f without", p.Hashes, p.Plain)
	}
	for _, p := range phases {
		out.add("leaves copied per operation, "+p.Name, "", "%.1f by whole chunks (§3.8), at most 1 by paths", p.Copied)
	}
	last := lines[0].Points[len(lines[0].Points)-1].X
	out.Charts = []chart{{
		Title: fmt.Sprintf("AVL* §5.3.3 and beyond: chunks over the ideal number, %s leaves in a chunk", harness.Group(o.Limit)),
		X:     fmt.Sprintf("operations over %s: inserts to 1, updates to 1.2, deletes to 1.95, then churn", harness.Group(o.Keys)),
		Y:     "chunks / ideal number",
		Lines: append(lines, line{Name: "the paper: around 1.4 after inserts", Paper: true, Points: []point{at(0, 1.4), at(1, 1.4)}},
			line{Name: "ideal", Paper: true, Points: []point{at(0, 1), at(last, 1)}}),
	}}
	return out
}

func newKey(rng *rand.Rand) string {
	b := make([]byte, 0, 24)
	for range 3 {
		b = binary.BigEndian.AppendUint64(b, rng.Uint64())
	}
	return string(b[:spaceKey])
}

func newValue(rng *rand.Rand) []byte {
	b := make([]byte, 0, spaceValue+8)
	for len(b) < spaceValue {
		b = binary.BigEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:spaceValue]
}
