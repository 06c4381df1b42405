package rangemap_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/internal/bubble"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/rangemap"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/transporttest"
)

const chain = "test-chain"

func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('a'+seed)), ed25519.SeedSize)))
}

// id returns the ID of node i.
func id(i int) string { return string(transporttest.ID(i)) }

// file returns an unsigned storage nodes file: two nodes keep all keys.
func file() string {
	return fmt.Sprintf("[[range]]\nfirst = \"\"\nnodes = [\"%s@node0:1\", \"%s@node1:1\"]\n", id(0), id(1))
}

func first(t *testing.T) *config.StorageNodes {
	t.Helper()
	m, err := config.SignFile([]byte(file()), chain, key(0))
	require.NoError(t, err)
	return m
}

func signed(t *testing.T, m *config.StorageNodes) *config.StorageNodes {
	t.Helper()
	s, err := m.Sign(key(0))
	require.NoError(t, err)
	return s
}

// member is a node with a map, and with claims that the test sets.
type member struct {
	maps   *rangemap.Maps
	home   string
	used   atomic.Uint64 // last version that was applied
	refuse atomic.Bool
	claims atomic.Pointer[[]dsm.Claim]
}

func newMember(t *testing.T, network *transporttest.Network, i int, m *config.StorageNodes) *member {
	t.Helper()
	n := &member{home: t.TempDir()}
	n.write(t, m.Text)
	var err error
	n.maps, err = rangemap.New(rangemap.Options{
		Logger: log.NewNopLogger(), Home: n.home, File: "map.toml", ChainID: chain, Self: transporttest.ID(i),
		Dialer: network.Dialer(transporttest.Config{ID: transporttest.ID(i), Host: fmt.Sprint("dialer", i), ChainID: chain}),
		Use: func(m *config.StorageNodes) error {
			if n.refuse.Load() {
				return errors.New("refused by the test")
			}
			n.used.Store(m.Version)
			return nil
		},
	}, m)
	require.NoError(t, err)
	n.claims.Store(new([]dsm.Claim))
	mux := new(transport.Mux)
	n.maps.Register(mux)
	mux.Handle(dsm.MethodRanges, transport.HandlerFunc(func(context.Context, transport.Request) ([]byte, error) { return dsm.EncodeClaims(*n.claims.Load()) }))
	l, err := network.Listen(fmt.Sprintf("node%d:1", i), transporttest.Config{ID: transporttest.ID(i), ChainID: chain, Handler: mux})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return n
}

func (n *member) write(t *testing.T, text []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(n.home, "map.toml"), text, 0o600))
}

// A newer map that one node gets reaches the other, which writes it to its file.
func TestSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, m := new(transporttest.Network), first(t)
		a, b := newMember(t, network, 0, m), newMember(t, network, 1, m)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.maps.Run(ctx)
		go b.maps.Run(ctx)
		two, err := rangemap.Split(m, []byte("m"))
		require.NoError(t, err)
		two = signed(t, two)
		require.NoError(t, a.maps.Offer(two.Text, "the test"))
		bubble.Sleep(10 * time.Second)
		require.EqualValues(t, 2, b.used.Load())
		text, err := os.ReadFile(filepath.Join(b.home, "map.toml"))
		require.NoError(t, err)
		require.Equal(t, string(two.Text), string(text))

		// An operator replaces the file of one node by hand.
		three, err := rangemap.Finish(two)
		require.NoError(t, err)
		three = signed(t, three)
		b.write(t, append([]byte(nil), three.Text...))
		bubble.Sleep(10 * time.Second)
		require.EqualValues(t, 3, a.used.Load())
		require.EqualValues(t, 3, b.used.Load())
		require.Equal(t, 2, a.maps.Current().Ranges.Len())

		// An older file, and one that is not signed, change nothing.
		b.write(t, two.Text)
		bubble.Sleep(5 * time.Second)
		b.write(t, []byte(file()))
		bubble.Sleep(5 * time.Second)
		require.EqualValues(t, 3, b.maps.Current().Version)
		cancel()
		synctest.Wait()
	})
}

// Only the operator can change the map.
func TestRefuses(t *testing.T) {
	network, m := new(transporttest.Network), first(t)
	a := newMember(t, network, 0, m)
	two, err := rangemap.Split(m, []byte("m"))
	require.NoError(t, err)
	other := *two
	other.ChainID = "another-chain"
	forged, err := two.Sign(key(1))
	require.NoError(t, err)
	good := signed(t, two)
	for name, c := range map[string]struct {
		text []byte
		want error
	}{
		"another key":         {forged.Text, config.ErrOtherOperator},
		"another chain":       {signed(t, &other).Text, config.ErrOtherOperator},
		"no signature":        {[]byte(file()), config.ErrOtherOperator},
		"nothing":             {nil, config.ErrOtherOperator},
		"a torn file":         {good.Text[:len(good.Text)-9], config.ErrOtherOperator},
		"an edited file":      {[]byte(strings.Replace(string(good.Text), `"m"`, `"n"`, 1)), config.ErrOtherOperator},
		"the same version":    {m.Text, config.ErrNotNewer},
		"too long":            {make([]byte, config.MaxStorageNodesBytes+1), config.ErrOtherOperator},
		"a foreign operator":  {[]byte(strings.Replace(string(forged.Text), "operator", "operator ", 1)), config.ErrOtherOperator},
		"signature elsewhere": {append([]byte("\n"), good.Text...), config.ErrOtherOperator},
	} {
		require.ErrorIs(t, a.maps.Offer(c.text, "the test"), c.want, name)
	}
	a.refuse.Store(true)
	require.ErrorContains(t, a.maps.Offer(good.Text, "the test"), "refused by the test")
	require.EqualValues(t, 1, a.maps.Current().Version)
	text, err := os.ReadFile(filepath.Join(a.home, "map.toml"))
	require.NoError(t, err)
	require.Equal(t, string(m.Text), string(text))

	_, err = config.ParseStorageNodes([]byte(strings.Replace(string(good.Text), `"m"`, `"n"`, 1)))
	require.ErrorContains(t, err, "the file was changed after it was signed")
	_, err = rangemap.New(rangemap.Options{ChainID: "another-chain"}, m)
	require.ErrorIs(t, err, config.ErrInvalid)
}

// A stranger's offers of false maps are verified once a second at most.
func TestOffersOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, m := new(transporttest.Network), first(t)
		newMember(t, network, 0, m)
		conn, err := network.Dialer(transporttest.Config{ID: transporttest.ID(9), Host: "stranger", ChainID: chain}).
			Dial(t.Context(), transport.Address{ID: transporttest.ID(0), HostPort: "node0:1"})
		require.NoError(t, err)
		defer conn.Close()
		offer := dsm.Map{Version: 9, Text: []byte("nonsense")}
		_, err = rangemap.Ask(t.Context(), conn, offer)
		require.ErrorIs(t, err, transport.ErrRefused)
		_, err = rangemap.Ask(t.Context(), conn, offer)
		require.ErrorIs(t, err, transport.ErrBusy)
		bubble.Sleep(2 * time.Second)
		_, err = rangemap.Ask(t.Context(), conn, offer)
		require.ErrorIs(t, err, transport.ErrRefused)
		answer, err := rangemap.Ask(t.Context(), conn, dsm.Map{})
		require.NoError(t, err)
		require.Equal(t, m.Text, answer.Text)
	})
}

// counting counts the dials.
type counting struct {
	transport.Dialer
	dials *atomic.Int64
}

func (c counting) Dial(ctx context.Context, a transport.Address) (transport.Conn, error) {
	c.dials.Add(1)
	return c.Dialer.Dial(ctx, a)
}

// A change waits until the new ranges follow, and finishes then. One that was interrupted is
// continued.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, m := new(transporttest.Network), first(t)
		members := []*member{newMember(t, network, 0, m), newMember(t, network, 1, m)}
		whole := dsm.Claim{Range: m.Ranges.Shard(0).Range, Oldest: 1, Newest: 100, Durable: 100, Needs: 101}
		var mu sync.Mutex // guards whole
		claim := func(oldest, newest int64) {
			mu.Lock()
			defer mu.Unlock()
			whole.Newest = max(whole.Newest, newest)
			claims := []dsm.Claim{whole}
			during, err := rangemap.Split(m, []byte("m"))
			require.NoError(t, err)
			for _, s := range during.Next {
				claims = append(claims, dsm.Claim{Range: s.Range, Oldest: oldest, Newest: newest, Durable: newest, Needs: newest + 1})
			}
			claims[0], claims[1] = claims[1], claims[0] // the narrower one comes first
			for _, n := range members {
				n.claims.Store(&claims)
			}
		}
		claim(1, 50)
		path := filepath.Join(t.TempDir(), "map.toml")
		var said []string
		var dials atomic.Int64
		d := &rangemap.Driver{
			Dialer: counting{network.Dialer(transporttest.Config{ID: transporttest.ID(8), Host: "operator", ChainID: chain}), &dials}, Key: key(0), Path: path,
			Progress: func(p rangemap.Progress) { said = append(said, p.String()) },
		}
		during, err := rangemap.Split(m, []byte("m"))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		last, err := d.Change(ctx, m, during)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "at block 50 of 100")
		require.NotEmpty(t, said)
		require.True(t, rangemap.IsChanging(last))
		for _, n := range members {
			require.EqualValues(t, 2, n.used.Load())
		}
		_, err = rangemap.Split(last, []byte("z"))
		require.ErrorIs(t, err, rangemap.ErrChanging)

		// The ranges are as they were fetched: perhaps no validator has their next update.
		claim(98, 98)
		// At first, perhaps one validator has it.
		time.AfterFunc(4500*time.Millisecond, func() { claim(98, 104) })
		// All validators had the map at block 100.
		time.AfterFunc(8500*time.Millisecond, func() { claim(98, 105) })
		// A replica that was opened again is behind for a moment.
		time.AfterFunc(10500*time.Millisecond, func() { claim(98, 104) })
		time.AfterFunc(11500*time.Millisecond, func() { claim(98, 107) })
		time.AfterFunc(12500*time.Millisecond, func() { claim(98, 108) })
		// It has followed for two blocks.
		time.AfterFunc(13500*time.Millisecond, func() { claim(98, 109) })
		began := time.Now()
		last, err = d.Continue(t.Context(), last)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), 13500*time.Millisecond, "two blocks in a row")
		require.Less(t, time.Since(began), 14*time.Second)
		require.Less(t, dials.Load(), int64(50), "connections stay open while it waits")
		require.EqualValues(t, 3, last.Version)
		require.Equal(t, 2, last.Ranges.Len())
		require.False(t, rangemap.IsChanging(last))
		for _, n := range members {
			require.EqualValues(t, 3, n.used.Load())
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(last.Text), string(text))
	})
}

// A replica can only be dropped if one that stays follows the chain. It need not be all of them:
// another one may be dead.
func TestDropNeedsAReplica(t *testing.T) {
	for name, c := range map[string]struct {
		newest []int64 // of the nodes; -1: the node is dead
		want   error
	}{
		"one that stays is close":       {[]int64{100, 97, -1}, nil},
		"none that stays has a state":   {[]int64{100, 0, -1}, rangemap.ErrLastReplica},
		"none that stays is close":      {[]int64{100, 96, 0}, rangemap.ErrLastReplica},
		"the dropped one is dead":       {[]int64{-1, 100, 0}, nil},
		"the dropped one has no state":  {[]int64{0, 0, 100}, nil},
		"nobody has a state":            {[]int64{0, 0, 0}, rangemap.ErrLastReplica},
		"the ones that stay do not run": {[]int64{100, -1, -1}, rangemap.ErrLastReplica},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				text := fmt.Sprintf("[[range]]\nfirst = \"\"\nnodes = [\"%s@node0:1\", \"%s@node1:1\", \"%s@node2:1\"]\n", id(0), id(1), id(2))
				m, err := config.SignFile([]byte(text), chain, key(0))
				require.NoError(t, err)
				network := new(transporttest.Network)
				for i, newest := range c.newest {
					if newest >= 0 {
						claim := dsm.Claim{Range: m.Ranges.Shard(0).Range, Oldest: min(newest, 1), Newest: newest, Durable: newest, Needs: newest + 1}
						newMember(t, network, i, m).claims.Store(&[]dsm.Claim{claim})
					}
				}
				d := &rangemap.Driver{
					Dialer: network.Dialer(transporttest.Config{ID: transporttest.ID(8), Host: "operator", ChainID: chain}), Key: key(0),
					Path: filepath.Join(t.TempDir(), "map.toml"),
				}
				during, err := rangemap.Move(m, nil, dsm.NodeID(id(0)), transport.Address{}, 2)
				require.NoError(t, err)
				last, err := d.Change(t.Context(), m, during)
				require.ErrorIs(t, err, c.want)
				if c.want == nil {
					require.EqualValues(t, 3, last.Version)
					require.Len(t, last.Ranges.Shard(0).Replicas, 2)
					return
				}
				require.Same(t, m, last)
				require.NoFileExists(t, d.Path, "no map was signed")
			})
		})
	}
}

// A map that a validator refuses reaches no storage node, and the change is taken back.
func TestRefusedChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, m := new(transporttest.Network), first(t)
		storage, validator := newMember(t, network, 0, m), newMember(t, network, 7, m)
		validator.refuse.Store(true)
		d := &rangemap.Driver{
			Dialer: network.Dialer(transporttest.Config{ID: transporttest.ID(8), Host: "operator", ChainID: chain}), Key: key(0),
			Path: filepath.Join(t.TempDir(), "map.toml"), Others: []transport.Address{{ID: transporttest.ID(7), HostPort: "node7:1"}},
		}
		during, err := rangemap.Split(m, []byte("m"))
		require.NoError(t, err)
		last, err := d.Change(t.Context(), m, during)
		require.ErrorIs(t, err, rangemap.ErrRefused)
		require.EqualValues(t, 3, last.Version)
		require.False(t, rangemap.IsChanging(last))
		require.Equal(t, 1, last.Ranges.Len())
		require.EqualValues(t, 3, storage.used.Load(), "version 2 was not for it")
		bubble.Sleep(2 * time.Second)
		validator.refuse.Store(false)
		require.NoError(t, validator.maps.Offer(last.Text, "the test"))
	})
}
