package avlstar

import (
	"math"
	"math/rand/v2"

	"github.com/stretchr/testify/require"
)

// pinPolicy decides what happens to a version when the next one is made.
type pinPolicy int

const (
	releaseAtOnce pinPolicy = iota
	pinAll                  // kept until the end
	pinSome                 // some kept; some of those released later, oldest first
	pinShuffled             // the same, in any order
	pinForks                // the same, and released forks of the version before
)

// pins holds versions, with their content where it is known.
type pins struct {
	policy pinPolicy
	rnd    *rand.Rand
	held   []pinned
}

type pinned struct {
	v       *Version
	content model
	root    Stub
}

// advance applies a block, and keeps or releases versions.
func (p *pins) advance(t require.TestingT, v *Version, block []Change) *Version {
	if p.policy == pinForks {
		p.fork(t, v)
	}
	before, early := v.Memory(), v.tree.early(len(block))
	next := mustApply(t, v, block...)
	p.requireReclaimed(t, v, before, early)
	switch {
	case p.policy == releaseAtOnce || p.policy == pinForks:
		v.Release()
	case p.policy == pinAll || p.rnd.IntN(2) == 0:
		p.held = append(p.held, pinned{v: v, root: v.Root()})
	default:
		v.Release()
	}
	for p.policy >= pinSome && len(p.held) > 12 {
		p.release(t)
	}
	return next
}

// requireReclaimed checks the nodes of released versions that an Apply freed. The Apply made a
// version from v; before is the memory of the tree before it. early is the number of nodes that it
// could free before it made any.
func (p *pins) requireReclaimed(t require.TestingT, v *Version, before MemoryStats, early int) {
	now, done := v.Memory(), v.Reclaimed()
	if p.policy != pinForks { // versions that were given up are freed in addition
		made := int(now.InnerNodes+now.Leaves) - int(before.InnerNodes+before.Leaves) + done.Freed
		died := int(now.Held) - int(before.Held) + done.Freed
		most := max(2*max(made, died)+tune.minReclaim, early)
		if v.tree.paging != nil {
			most = max(most, maxExcess)
		}
		require.LessOrEqual(t, done.Freed+done.PassedOn, most)
	}
	if len(p.held) == 0 && v.tree.paging == nil {
		require.Zero(t, done.PassedOn, "only the version that was changed is in use")
	}
}

// fork makes versions after v and releases them, in any order.
func (p *pins) fork(t require.TestingT, v *Version) {
	var given []*Version
	at := v
	for range p.rnd.IntN(3) {
		at = mustApply(t, at, randomBlock(p.rnd, 1+p.rnd.IntN(60), 300, 0.4, true)...)
		given = append(given, at)
	}
	for _, i := range p.rnd.Perm(len(given)) {
		given[i].Release()
	}
}

// release releases the oldest version, or any one.
func (p *pins) release(t require.TestingT) {
	i := 0
	if p.policy == pinShuffled {
		i = p.rnd.IntN(len(p.held))
	}
	h := p.held[i]
	require.Equal(t, h.root, h.v.Root())
	if h.content != nil {
		h.content.requireContent(t, h.v)
	}
	p.held = append(p.held[:i], p.held[i+1:]...)
	h.v.Release()
}

func (p *pins) releaseAll() {
	for _, i := range p.rnd.Perm(len(p.held)) {
		p.held[i].v.Release()
	}
	p.held = nil
}

// requireOnlyLatest checks, after all other versions were released, that the tree holds only v once
// a few more calls of Apply have given the others up.
func requireOnlyLatest(t require.TestingT, v *Version) {
	for held := uint64(math.MaxUint64); ; {
		same, err := v.Apply(nil)
		require.NoError(t, err)
		require.Same(t, v, same)
		same.Release()
		m := v.Memory()
		if m.Held == 0 {
			break
		}
		require.Less(t, m.Held, held, "no progress")
		require.LessOrEqual(t, v.Reclaimed().Freed, tune.minReclaim)
		held = m.Held
	}
	m := v.Memory()
	require.Equal(t, 1, m.Versions)
	require.Equal(t, max(v.Len(), 1)-1, m.InnerNodes)
	require.Equal(t, v.Len(), m.Leaves)
	requireInvariants(t, v)
}

// reclaimSlowly makes an Apply without new nodes free only this number of nodes, so that versions
// are given up in parts.
func reclaimSlowly(t interface{ Cleanup(func()) }, nodes int) {
	usual := tune.minReclaim
	t.Cleanup(func() { tune.minReclaim = usual })
	tune.minReclaim = nodes
}
