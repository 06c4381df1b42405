package avlstar

import (
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
	pinForks                // the same, and versions beside the next one, released
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
	next := mustApply(t, v, block...)
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

// requireOnlyLatest checks, after all other versions were released, that the tree holds v and the
// previous version, and after the next Apply v alone.
func requireOnlyLatest(t require.TestingT, v *Version) {
	same, err := v.Apply(nil)
	require.NoError(t, err)
	require.Same(t, v, same)
	same.Release()
	m := v.Memory()
	require.Equal(t, 1, m.Versions)
	require.Equal(t, max(v.Len(), 1)-1, m.InnerNodes)
	require.Equal(t, v.Len(), m.Leaves)
	require.Zero(t, m.Held)
	requireInvariants(t, v)
}
