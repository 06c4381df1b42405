package manifest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// lies are the modes of e2e/byzantine that occur in generated networks, in which a node joins.
var lies = []string{"mix", "corrupt", "truncate", "swap", "oversize", "equivocate", "stale", "alias", "lone", "manifest", "header", "gone", "slow", "last"}

// Generate returns the manifest of a seed: two to five validators, one or two nodes that join, up
// to two Byzantine full nodes, and two to four steps. The state of a third of the networks is
// sharded, over one to three ranges with two storage nodes each, one of which can be Byzantine:
// either of at most three validators, some of which can have the whole state, or of all of up to
// four validators. The network is small enough to run on two cores. upgradeFrom is the commit of
// the first program of some nodes; empty: all nodes run the present program.
func Generate(seed uint64, upgradeFrom string) *Manifest {
	r := rand.New(rand.NewPCG(seed, 0x656e3265))
	m := &Manifest{
		Name: fmt.Sprintf("seed-%d", seed), Description: fmt.Sprintf("generated from seed %d", seed), Seed: seed,
		ChunkBytes: pick(r, uint64(1<<10), 8<<10, 64<<10), SnapshotInterval: pick(r, int64(8), 12, 20),
		BlockPause: Duration(pick(r, 200*time.Millisecond, 400*time.Millisecond)),
		Limit:      Duration(8 * time.Minute), Nodes: map[string]Node{},
		Load: Load{InitialKeys: pick(r, 0, 500, 4000), ValueBytes: pick(r, 20, 100, 500), Clients: pick(r, 2, 4, 6), Keys: pick(r, 3, 10)},
	}
	if r.IntN(4) == 0 {
		m.Link = Link{Delay: Duration(pick(r, 10*time.Millisecond, 40*time.Millisecond))}
	}
	validators := 2 + r.IntN(4)
	var established, storage []string
	allSharded := false
	if r.IntN(3) == 0 {
		// Drawn apart from r: the networks of most seeds are those of earlier versions.
		allSharded = rand.New(rand.NewPCG(seed, 0x616c6c)).IntN(2) == 0
		if validators = min(validators, 4); !allSharded {
			validators = min(validators, 3)
		}
		storage = shard(r, m)
	}
	for i := range validators {
		n := Node{Mode: Validator, Power: pick(r, int64(10), 10, 15), Paged: r.IntN(4) == 0}
		if m.Shards > 0 && (r.IntN(4) > 0 || allSharded) {
			n.Sharded, n.Paged = true, false
		}
		if validators >= 4 && i == 0 && !n.Sharded && upgradeFrom != "" && r.IntN(2) == 0 {
			n.Version = upgradeFrom
		}
		name := fmt.Sprintf("validator-%d", i)
		m.Nodes[name] = n
		established = append(established, name)
	}
	for i := range r.IntN(3) {
		m.Nodes[fmt.Sprintf("liar-%d", i)] = Node{Mode: Full, Lie: pick(r, lies...)}
	}
	late := make([]string, 1+r.IntN(2))
	for i := range late {
		late[i] = fmt.Sprintf("joiner-%d", i)
		n := Node{Mode: Full, StartAt: m.SnapshotInterval + 2 + int64(r.IntN(5)), Join: pick(r, Transport, Transport, Transport, Blocks),
			Paged: r.IntN(4) == 0}
		if m.Shards > 0 && r.IntN(2) == 0 {
			n.Sharded, n.Paged, n.Join = true, false, Transport
		}
		m.Nodes[late[i]] = n
	}
	for range 2 + r.IntN(3) {
		m.Steps = append(m.Steps, step(r, m, established, late, storage))
	}
	// steps that start nodes come before steps that disturb these nodes
	slices.SortStableFunc(m.Steps, func(a, b Step) int { return startsNodes(b) - startsNodes(a) })
	if m.Nodes["validator-0"].Version != "" {
		m.Steps = append(m.Steps, Step{Do: Upgrade, Nodes: []string{"validator-0"}})
	}
	m.Complete()
	return m
}

// otherReplica returns the other storage node of a storage node's range.
func (m *Manifest) otherReplica(name string) string {
	var i int
	_, _ = fmt.Sscanf(name, "storage-%d", &i)
	return fmt.Sprintf("storage-%d", (i+m.Shards)%(2*m.Shards))
}

// shard adds storage nodes to a manifest, and returns the names of the honest ones.
func shard(r *rand.Rand, m *Manifest) (honest []string) {
	m.Shards = 1 + r.IntN(3)
	liar := r.IntN(4 * m.Shards) // often none
	for i := range 2 * m.Shards {
		n, name := Node{Mode: Storage}, fmt.Sprintf("storage-%d", i)
		if i == liar {
			n.Lie = pick(r, "mix", "corrupt", "truncate", "oversize", "stale", "gone", "slow")
		} else {
			honest = append(honest, name)
		}
		m.Nodes[name] = n
	}
	return honest
}

// startsNodes returns 1 if a step starts nodes, else 0.
func startsNodes(s Step) int {
	if s.Do == KillMidSync {
		return 1
	}
	return 0
}

// step draws one step. Some steps remove more than a third of the power: the chain then stops, and
// has to continue afterwards.
func step(r *rand.Rand, m *Manifest, established, late, storage []string) Step {
	everyone := slices.Concat(established, late, storage)
	for {
		s := Step{Do: pick(r, Kill, Pause, Restart, Disconnect, Partition, Bandwidth, Delay, DeleteSnapshot, LoseDisk, KillMidSync)}
		switch s.Do {
		case Kill, Restart:
			s.Nodes = some(r, everyone, 2)
		case Pause, Disconnect:
			s.Nodes, s.For = some(r, everyone, 1), seconds(r, 2, 6)
		case Partition:
			s.Nodes, s.For = some(r, slices.Concat(established, storage), max(1, (len(established)+len(storage))/2)), seconds(r, 3, 8)
		case Bandwidth:
			s.Nodes, s.For, s.Rate = some(r, everyone, 2), seconds(r, 4, 8), 100_000
		case Delay:
			s.Nodes, s.For, s.Delay = some(r, everyone, 2), seconds(r, 4, 8), Duration(100*time.Millisecond)
		case DeleteSnapshot:
			s.Nodes = some(r, established, 1)
			if m.Nodes[s.Nodes[0]].Sharded {
				continue
			}
		case LoseDisk:
			if len(storage) == 0 {
				continue
			}
			s.Nodes = some(r, storage, 1)
			if m.Nodes[m.otherReplica(s.Nodes[0])].Lie != "" { // the range would be lost
				continue
			}
		case KillMidSync:
			s.Nodes = some(r, late, 1)
			again := slices.ContainsFunc(m.Steps, func(o Step) bool { return o.Do == KillMidSync })
			if n := m.Nodes[s.Nodes[0]]; again || n.Join != Transport || n.Sharded {
				continue
			}
		}
		return s
	}
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

// some draws one to most names, and keeps their order.
func some(r *rand.Rand, names []string, most int) []string {
	drawn := r.Perm(len(names))[:1+r.IntN(most)]
	slices.Sort(drawn)
	chosen := make([]string, len(drawn))
	for i, at := range drawn {
		chosen[i] = names[at]
	}
	return chosen
}

func seconds(r *rand.Rand, from, to int) Duration {
	return Duration(time.Duration(from+r.IntN(to-from+1)) * time.Second)
}
