package join_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
	"github.com/starling-kv/starling/cosmos/join"
	"github.com/starling-kv/starling/cosmos/nodedb"
	"github.com/starling-kv/starling/cosmos/nodedb/nodedbtest"
	"github.com/starling-kv/starling/cosmos/packed"
	"github.com/starling-kv/starling/internal/seeds"
	"github.com/starling-kv/starling/transport"
	"github.com/starling-kv/starling/transport/tcp"
	"github.com/starling-kv/starling/transport/transporttest"
)

func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 300)
		for range 3 {
			w.add(nil)
		}
		db := nodedbtest.NewMem()
		r := w.join(db)
		require.Equal(t, r.Chunks, r.Fetched)
		_, err := join.Join(context.Background(), w.options(db))
		require.ErrorIs(t, err, nodedb.ErrNotEmpty)
	})
}

func TestEmptyChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, iavlsynctest.State{"bank": nil})
		w.add(nil)
		require.Zero(t, w.join(nodedbtest.NewMem()).Chunks)
	})
}

// TestLoopback joins over TCP.
func TestLoopback(t *testing.T) {
	w := randomWorld(t, 2000)
	for n := range 2 {
		s, err := tcp.Listen("127.0.0.1:0", tcp.Options{Key: transporttest.Key(n + 1), ChainID: chainID, Handler: w.server()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = s.Close() })
		w.peers = append(w.peers, transport.Address{ID: transporttest.ID(n + 1), HostPort: s.Addr().String()})
	}
	db := nodedbtest.NewMem()
	o := w.options(db)
	o.Dialer = tcp.NewDialer(tcp.Options{Key: transporttest.Key(9), ChainID: chainID})
	r, err := join.Join(context.Background(), o)
	require.NoError(t, err)
	require.Equal(t, r.Chunks, r.Fetched)
	w.same(db)
}

type change = func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error)

// leaves returns a change of responses with chunks only.
func leaves(fn change) change {
	return func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
		if r.Method != iavlsync.MethodLeaves {
			return honest.Serve(ctx, r)
		}
		return fn(ctx, honest, r)
	}
}

// TestHostilePeers: whatever two of three peers do, the join ends with the right state, and
// Byzantine peers are banned.
func TestHostilePeers(t *testing.T) {
	forever := func(ctx context.Context, _ transport.Handler, _ transport.Request) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	fails := func(err error) change {
		return func(context.Context, transport.Handler, transport.Request) ([]byte, error) { return nil, err }
	}
	for name, test := range map[string]struct {
		change change
		lies   bool
	}{
		"one bit": {leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			b, err := honest.Serve(ctx, r)
			if len(b) > 0 {
				b = bytes.Clone(b)
				b[len(b)/2] ^= 1
			}
			return b, err
		}), true},
		"another chunk": {leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			q, _ := iavlsync.DecodeRequest(r.Body)
			q.Store, q.First, q.Leaves = "mint", 0, 1
			r.Body = q.Encode()
			return honest.Serve(ctx, r)
		}), true},
		"nothing": {leaves(func(context.Context, transport.Handler, transport.Request) ([]byte, error) { return nil, nil }), true},
		"too long": {leaves(func(context.Context, transport.Handler, transport.Request) ([]byte, error) {
			return make([]byte, 17<<20), nil
		}), true},
		"another manifest": {func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			b, err := honest.Serve(ctx, r)
			if r.Method == iavlsync.MethodManifest {
				b = bytes.Clone(b)
				b[len(b)-1] ^= 1
			}
			return b, err
		}, false}, // it gets a request only if it is selected
		"endless manifest": {func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if r.Method == iavlsync.MethodManifest {
				return make([]byte, iavlsync.ManifestPartBytes), nil
			}
			return honest.Serve(ctx, r)
		}, false},
		"offers that are none": {func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if r.Method == iavlsync.MethodOffers {
				return iavlsync.Offers{5, 4}.Encode(), nil
			}
			return honest.Serve(ctx, r)
		}, false},
		"a height of its own": {func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if r.Method == iavlsync.MethodOffers {
				return iavlsync.Offers{height, 1 << 40}.Encode(), nil
			}
			return honest.Serve(ctx, r)
		}, false},
		"dawdles":               {leaves(forever), false},
		"dawdles everywhere":    {forever, false},
		"has lost it since":     {leaves(fails(transport.ErrGone)), false},
		"busy":                  {leaves(fails(transport.ErrBusy)), false},
		"refuses":               {leaves(fails(transport.ErrRefused)), false},
		"a disk that is broken": {leaves(fails(errUnplugged)), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := randomWorld(t, 100)
				w.add(test.change)
				w.add(nil)
				w.add(test.change)
				r := w.join(nodedbtest.NewMem())
				if !test.lies {
					return
				}
				require.LessOrEqual(t, r.Banned, 2)
			})
		})
	}
}

// accounts returns a world whose values are similar.
func accounts(t *testing.T) *world {
	tree := &iavlsynctest.Tree{}
	rnd := seeds.Rand(t)
	for i := range 10_000 {
		tree.Set(fmt.Appendf(nil, "balance/%08x", i), fmt.Appendf(nil, "/cosmos.auth.v1beta1.BaseAccount/%d/uatom", rnd.Uint32()))
	}
	tree.SaveAs(height)
	return newWorld(t, iavlsynctest.State{"bank": tree.Root})
}

// TestPacked: chunks are compressed on their way, except by a server from before that was defined.
func TestPacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := accounts(t)
		w.add(nil)
		r := w.join(nodedbtest.NewMem())
		require.Greater(t, r.Chunks, 1)
		require.Greater(t, r.ChunkBytes, int64(10_000*50))
		require.Less(t, r.Bytes, r.ChunkBytes/2)

		w = newWorld(t, w.naive)
		var refused atomic.Int64
		w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if q, err := iavlsync.DecodeRequest(r.Body); err != nil || q.Packed {
				refused.Add(1)
				return nil, transport.ErrRefused
			}
			return honest.Serve(ctx, r)
		}))
		old := w.join(nodedbtest.NewMem())
		require.Equal(t, r.ChunkBytes, old.ChunkBytes)
		require.Equal(t, r.ChunkBytes+int64(r.Chunks), old.Bytes)
		require.LessOrEqual(t, refused.Load(), int64(r.Chunks))
	})
}

// TestFalsePackedAnswers: a sender of a compressed answer that no honest server sends is banned.
func TestFalsePackedAnswers(t *testing.T) {
	e, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	bomb := e.EncodeAll(make([]byte, iavlsync.MaxAnswerBytes), []byte{packed.Kind})
	always := func(b []byte) func([]byte) []byte { return func([]byte) []byte { return b } }
	for name, change := range map[string]func(answer []byte) []byte{
		"a bomb":    always(bomb),
		"truncated": func(answer []byte) []byte { return answer[:len(answer)/2] },
		"garbage":   always([]byte{packed.Kind, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
		"another chunk of the same length": func(answer []byte) []byte {
			_, chunk, err := packed.NewUnpacker().Split(answer)
			require.NoError(t, err)
			chunk[len(chunk)-1] ^= 1
			return packed.NewPacker().Pack(append([]byte{byte(iavlsync.AnswerWhole)}, chunk...))
		},
		"not requested": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := accounts(t)
				w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
					q, err := iavlsync.DecodeRequest(r.Body)
					require.NoError(t, err)
					if change == nil && q.Packed {
						return nil, transport.ErrRefused
					}
					q.Packed = true
					r.Body = q.Encode()
					b, err := honest.Serve(ctx, r)
					if err == nil && change != nil {
						b = change(b)
					}
					return b, err
				}))
				_, err := join.Join(context.Background(), w.options(nodedbtest.NewMem()))
				require.ErrorIs(t, err, join.ErrNoPeers)
				require.Contains(t, w.logs[len(w.logs)-1], "is banned")
				w.add(nil)
				require.LessOrEqual(t, w.join(nodedbtest.NewMem()).Banned, 1)
			})
		})
	}
}

// TestHalvesOfShortChunks: each half is valid. Only at the end it turns out that halves were not
// needed.
func TestHalvesOfShortChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 60)
		w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			q, err := iavlsync.DecodeRequest(r.Body)
			require.NoError(t, err)
			n, first := w.naive[q.Store], int64(0)
			for n.Size() > q.Leaves || first != q.First {
				if left := n.Left.Size(); q.First < first+left {
					n = n.Left
				} else {
					n, first = n.Right, first+left
				}
			}
			if n.Left == nil {
				return honest.Serve(ctx, r)
			}
			return n.Halves(height), nil
		}))
		_, err := join.Join(context.Background(), w.options(nodedbtest.NewMem()))
		require.ErrorIs(t, err, join.ErrNoPeers)
		require.Contains(t, w.logs[len(w.logs)-1], "it came in halves")
		w.add(nil)
		require.LessOrEqual(t, w.join(nodedbtest.NewMem()).Banned, 1)
	})
}

// TestLiarsAreBanned: with only Byzantine peers, a join ends with no state, and with all peers
// banned.
func TestLiarsAreBanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 100)
		for range 3 {
			w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
				b, err := honest.Serve(ctx, r)
				return append(bytes.Clone(b), 0), err
			}))
		}
		db := nodedbtest.NewMem()
		_, err := join.Join(context.Background(), w.options(db))
		require.ErrorIs(t, err, join.ErrNoPeers)
		require.Contains(t, w.logs[len(w.logs)-1], "is banned")
		_, err = nodedb.Latest(db)
		require.ErrorIs(t, err, nodedb.ErrNoState)
	})
}

// TestKilled: a join that was killed at a write is resumed, and fetches only what is missing.
func TestKilled(t *testing.T) {
	rnd := seeds.Rand(t)
	for range 8 {
		synctest.Test(t, func(t *testing.T) {
			w := randomWorld(t, 100)
			w.add(nil)
			w.add(nil)
			db := nodedbtest.NewMem()
			db.KillAfter(rnd.IntN(6))
			_, err := join.Join(context.Background(), w.options(db))
			require.ErrorIs(t, err, nodedbtest.ErrKilled)
			db = db.Crash(rnd.IntN(1 + db.Unsynced()))
			m := nodedbtest.Manifest(t, iavlsync.Format8192, height, w.naive)
			in, err := nodedb.NewInstaller(db, m)
			require.NoError(t, err)
			require.Equal(t, len(in.Missing()), w.join(db).Fetched)
		})
	}
}

// slowHeaders responds to requests for unknown heights only after the caller's time limit.
type slowHeaders struct{ headers }

func (h slowHeaders) AppHash(ctx context.Context, height int64) ([]byte, error) {
	if h.headers[height] == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.headers.AppHash(ctx, height)
}

// TestDawdlersOffer: peers that offer many heights but send nothing do not prevent a join from
// another peer, whether that peer was there first or comes later.
func TestDawdlersOffer(t *testing.T) {
	for _, after := range []time.Duration{0, 25 * time.Second} {
		for name, most := range map[string]int64{"one height": height, "their own heights": height + 100} {
			t.Run(fmt.Sprint(name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := randomWorld(t, 100)
					for range 4 {
						w.add(func(ctx context.Context, _ transport.Handler, r transport.Request) ([]byte, error) {
							if r.Method != iavlsync.MethodOffers {
								<-ctx.Done()
								return nil, ctx.Err()
							}
							var o iavlsync.Offers
							for h := int64(height); h <= most; h++ {
								o = append(o, h)
							}
							return o.Encode(), nil
						})
					}
					w.add(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
						if r.Method == iavlsync.MethodOffers {
							pause, cancel := context.WithTimeout(ctx, after)
							defer cancel()
							<-pause.Done()
						}
						return honest.Serve(ctx, r)
					})
					o := w.options(nodedbtest.NewMem())
					o.Headers = slowHeaders{o.Headers.(headers)}
					r, err := join.Join(t.Context(), o)
					require.NoError(t, err, "%q", w.logs)
					require.EqualValues(t, height, r.Height)
				})
			})
		}
	}
}

// TestSlowServer: one of four servers that respond to all requests is 20 times slower. The join
// takes little longer than from the other three alone.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rnd := seeds.Rand(t)
		naive := iavlsynctest.State{}
		for i := range 100 { // one chunk each
			tree := &iavlsynctest.Tree{}
			tree.Apply(iavlsynctest.RandomOps(rnd, 50, 40, 0))
			tree.SaveAs(height)
			naive[fmt.Sprintf("store%02d", i)] = tree.Root
		}
		takes := func(each ...time.Duration) time.Duration {
			w := newWorld(t, naive)
			for _, d := range each {
				w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
					select {
					case <-time.After(d):
					case <-ctx.Done():
					}
					return honest.Serve(ctx, r)
				}))
			}
			started := time.Now()
			w.join(nodedbtest.NewMem())
			return time.Since(started)
		}
		const usual = 500 * time.Millisecond
		three, slow := takes(usual, usual, usual), takes(usual, usual, usual, 100*usual)
		t.Logf("from three servers %v, with an additional slow one %v", three, slow)
		require.Less(t, slow, three*3/2)
	})
}

// TestOnlyDawdlers: without other peers, the join ends.
func TestOnlyDawdlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 60)
		w.add(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
			if r.Method != iavlsync.MethodOffers {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			var o iavlsync.Offers
			for h := int64(1); h <= iavlsync.MaxOffers; h++ {
				o = append(o, h)
			}
			return o.Encode(), nil
		})
		o := w.options(nodedbtest.NewMem())
		o.Headers = slowHeaders{o.Headers.(headers)}
		from := time.Now()
		_, err := join.Join(t.Context(), o)
		require.ErrorIs(t, err, join.ErrNothing)
		require.Less(t, time.Since(from), 3*time.Minute)
	})
}

// TestFinal: a state that Final rejects is not visible, and the next join calls Final again.
func TestFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 100)
		w.add(nil)
		db := nodedbtest.NewMem()
		refused := errors.New("another chain")
		o := w.options(db)
		o.Final = func() error { return refused }
		for range 2 {
			_, err := join.Join(context.Background(), o)
			require.ErrorIs(t, err, refused)
			_, err = nodedb.Latest(db)
			require.ErrorIs(t, err, nodedb.ErrNoState)
		}
		require.Zero(t, w.join(db).Fetched)
	})
}

func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := randomWorld(t, 60)
		w.add(nil)
		older := iavlsynctest.RandomState(seeds.Rand(t), 60, height-1)
		db := nodedbtest.NewMem()
		_, err := nodedb.NewInstaller(db, nodedbtest.Manifest(t, iavlsync.Format8192, height-1, older))
		require.NoError(t, err)
		_, err = join.Join(context.Background(), w.options(db))
		require.ErrorIs(t, err, join.ErrStale)
		o := w.options(db)
		o.Height = height
		_, err = join.Join(context.Background(), o)
		require.ErrorIs(t, err, nodedb.ErrOtherJoin)
		o = w.options(nodedbtest.NewMem())
		o.Headers = headers{}
		_, err = join.Join(context.Background(), o)
		require.ErrorIs(t, err, join.ErrNothing)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = join.Join(ctx, o)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// TestLongChunks: a chunk above 16 MiB arrives in halves, and a leaf above that in parts.
func TestLongChunks(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	rnd := rand.NewChaCha8([32]byte{})
	for i := range 40 {
		value := make([]byte, 1<<20)
		if i == 11 {
			value = make([]byte, 21<<20)
		}
		_, _ = rnd.Read(value)
		tree.Set([]byte{byte(i)}, value)
	}
	tree.SaveAs(height)
	w := newWorld(t, iavlsynctest.State{"blobs": tree.Root})
	var asked atomic.Int64
	w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
		asked.Add(1)
		return honest.Serve(ctx, r)
	}))
	for _, folder := range []bool{false, true} {
		asked.Store(0)
		db := nodedbtest.NewMem()
		o := w.options(db)
		if folder {
			o.Target = join.InFolder(filepath.Join(t.TempDir(), "chunks"), 0, func() (nodedb.Tables, error) { return nodedb.InDB(db), nil }, nil)
		}
		r, err := join.Join(context.Background(), o)
		require.NoError(t, err)
		require.Equal(t, 1, r.Fetched)
		require.Greater(t, asked.Load(), int64(10))
		require.Greater(t, r.Bytes, int64(60<<20))
		state, err := nodedb.Open(db, height)
		require.NoError(t, err)
		m, err := state.Manifest(iavlsync.Format8192)
		require.NoError(t, err)
		require.Equal(t, w.naive.Manifest(height, 8192), m.Encode())
	}
}

// TestFolder: a join with its chunks in a folder is resumed there, whatever a crash has left of
// them, and leaves nothing but the database.
func TestFolder(t *testing.T) {
	rnd := seeds.Rand(t)
	for range 8 {
		synctest.Test(t, func(t *testing.T) {
			w := randomWorld(t, 100)
			ctx, kill := context.WithCancel(context.Background())
			defer kill()
			left := atomic.Int64{}
			left.Store(int64(rnd.IntN(5)))
			w.add(leaves(func(ctx context.Context, honest transport.Handler, r transport.Request) ([]byte, error) {
				if left.Add(-1) < 0 {
					kill()
				}
				return honest.Serve(ctx, r)
			}))
			dir, db := filepath.Join(t.TempDir(), "chunks"), nodedbtest.NewMem()
			begun := 0
			o := w.options(db)
			o.Target = join.InFolder(dir, 0, func() (nodedb.Tables, error) {
				if begun++; begun == 1 {
					return nil, nodedbtest.ErrKilled // such as a full disk
				}
				return nodedb.InDB(db), nil
			}, nil)
			_, err := join.Join(ctx, o)
			require.Error(t, err)
			damage(t, rnd, dir)
			left.Store(1 << 30)
			m := nodedbtest.Manifest(t, iavlsync.Format8192, height, w.naive)
			s, err := nodedb.NewSpool(dir, m)
			require.NoError(t, err)
			missing := len(s.Missing())
			if begun == 0 {
				_, err = join.Join(context.Background(), o)
				require.ErrorIs(t, err, nodedbtest.ErrKilled)
				missing = 0
			}
			_, err = nodedb.Latest(db)
			require.ErrorIs(t, err, nodedb.ErrNoState)
			r, err := join.Join(context.Background(), o)
			require.NoError(t, err)
			require.Equal(t, missing, r.Fetched)
			w.same(db)
			require.NoDirExists(t, dir)
		})
	}
}

// damage truncates or changes one file of chunks, like a power loss before a sync.
func damage(t *testing.T, rnd *rand.Rand, dir string) {
	names, err := filepath.Glob(filepath.Join(dir, "*-*"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".part-7"), []byte("half"), 0o600))
	if len(names) == 0 {
		return
	}
	name := names[rnd.IntN(len(names))]
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	if len(b) == 0 || rnd.IntN(2) == 0 {
		b = b[:rnd.IntN(1+len(b))]
	} else {
		b[rnd.IntN(len(b))] ^= 1
	}
	require.NoError(t, os.WriteFile(name, b, 0o600))
}
