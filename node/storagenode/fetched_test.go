package storagenode

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/storage"
)

// fetchAll fetches the newest state of a range, so that it can be installed.
func (o *offline) fetchAll(p *place) *takeover {
	o.t.Helper()
	source := &giver{Conn: &source{v: o.version}, parts: []dsm.Claim{{Oldest: o.height, Newest: o.height}}}
	over := o.newTakeover(p, []*giver{source}, o.height)
	o.t.Cleanup(over.release)
	hash := o.version.AppHash()
	require.NoError(o.t, over.begin(o.t.Context(), hash[:]))
	require.NoError(o.t, o.openFetched(o.t.Context(), p))
	require.NoError(o.t, over.resume())
	require.NoError(o.t, over.fill(o.t.Context()))
	return over
}

// installAll installs what fetchAll has fetched.
func (o *offline) installAll(p *place, over *takeover) error {
	return o.install(o.t.Context(), p, o.height, over.partial.Commitment(), over.boundary)
}

// A first state is verified when it is opened. If it was damaged on the way to the disk, it is put
// aside and fetched again, also if the node was killed anywhere in between.
func TestFirstStateIsVerifiedWhenItIsOpened(t *testing.T) {
	inPlace := func(p *place) error { return errors.Join(nextIs(p.dir, fetchedDir(p.dir)), replace(p.dir)) }
	// what is done before a kill; nil: there is none
	for name, until := range map[string]func(p *place) error{
		"it runs":                    nil,
		"a kill after the commit":    func(*place) error { return nil },
		"a kill before the renaming": func(p *place) error { return nextIs(p.dir, fetchedDir(p.dir)) },
		"a kill before it is opened": inPlace,
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffline(t)
			o.serveAll()
			p := o.add(avlstar.KeyRange{}, current, false)
			over := o.fetchAll(p)
			flip(t, filepath.Join(fetchedDir(p.dir), "state", "restore", "*.runs"), 40)
			if until == nil {
				require.ErrorIs(t, o.installAll(p, over), storage.ErrCorrupt)
			} else {
				require.NoError(t, p.fetched.CommitUnread(t.Context(), o.height, over.partial.Commitment(), over.boundary))
				require.NoError(t, p.closeFetched())
				require.NoError(t, until(p))
				require.NoError(t, o.openPlace(t.Context(), p))
			}
			require.Nil(t, p.replica)
			require.NoError(t, o.mu.failure)
			require.DirExists(t, p.dir+damagedSuffix)
			for _, dir := range []string{p.dir, p.dir + nextSuffix, fetchedDir(p.dir)} {
				require.NoDirExists(t, dir)
			}

			require.NoError(t, o.installAll(p, o.fetchAll(p)))
			t.Cleanup(func() { require.NoError(t, p.replica.Close()) })
			partial, ok := p.replica.At(o.height)
			require.True(t, ok)
			defer partial.Release()
			require.Equal(t, o.version.AppHash(), partial.AppHash())
		})
	}
}

// A range whose header the follower has proved is taken over without another one from peers.
func TestTakesOverByAProvedHeader(t *testing.T) {
	o := newOffline(t)
	o.serveAll()
	p := o.add(avlstar.KeyRange{}, current, false)
	source := &giver{Conn: &source{v: o.version}, parts: []dsm.Claim{{Oldest: o.height, Newest: o.height}}}
	takeOver := func() error { return o.takeOverAt(t.Context(), p, forked{}, []*giver{source}, o.height) }
	require.ErrorIs(t, takeOver(), lightblocks.ErrConflict, "peers are asked")
	hash := o.version.AppHash()
	o.headers.add(proved{height: o.height + 1, appHash: hash[:]})
	require.NoError(t, takeOver())
	require.NoError(t, p.replica.Close())
}

// An old state is given up only for one that was read and verified.
func TestOldStateStaysIfTheNewOneIsDamaged(t *testing.T) {
	o := newOffline(t)
	p := o.add(avlstar.KeyRange{}, current, true)
	old := p.replica
	o.serveAll()
	o.block(offlineKey(1), 40)
	over := o.fetchAll(p)
	flip(t, filepath.Join(fetchedDir(p.dir), "state", "restore", "*.runs"), 40)
	require.ErrorIs(t, o.installAll(p, over), storage.ErrCorrupt)
	require.Same(t, old, p.replica)
	require.NoDirExists(t, p.dir+damagedSuffix)
	require.DirExists(t, fetchedDir(p.dir), "the next attempt removes the damaged pieces only")
}
