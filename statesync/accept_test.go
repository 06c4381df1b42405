package statesync

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// slowTarget delays Write until the test allows it.
type slowTarget struct {
	*fakeTarget
	let chan error
}

func (s slowTarget) Write(k uint32, c *avlstar.Chunk) error {
	if err := <-s.let; err != nil {
		return err
	}
	return s.fakeTarget.Write(k, c)
}

// Accept of a second valid copy returns when the chunk is written, not before: otherwise its caller
// would consider the restore complete.
func TestAcceptOfASecondCopyWaits(t *testing.T) {
	for name, failure := range map[string]error{"written": nil, "failed": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			v := randomTree(t, newRNG(t, 11), 20, 1<<20)
			data := chunksOf(t, v)[0]
			synctest.Test(t, func(t *testing.T) {
				target := slowTarget{&fakeTarget{t: t}, make(chan error)}
				r, err := BeginRestore(target, 10, v.Manifest())
				require.NoError(t, err)
				type result struct {
					fresh bool
					err   error
				}
				results := make(chan result, 2)
				for range 2 {
					go func() {
						fresh, err := r.Accept(0, data)
						results <- result{fresh, err}
					}()
				}
				synctest.Wait()
				require.Empty(t, results)
				target.let <- failure
				a, b := <-results, <-results
				if failure != nil {
					require.ErrorIs(t, a.err, failure)
					require.ErrorIs(t, b.err, failure)
				} else {
					require.NoError(t, a.err)
					require.NoError(t, b.err)
					require.NotEqual(t, a.fresh, b.fresh)
					require.Zero(t, r.Missing())
				}
				require.NoError(t, r.Abort())
			})
		})
	}
}

// The bytes of every chunk come back once, also those of a second copy, and overwriting them then
// changes nothing. Chunks arrive in any order, from several goroutines.
func TestBytesComeBack(t *testing.T) {
	rng := newRNG(t, 12)
	for name, targetOf := range map[string]func(*fakeTarget) Target{
		"assembled": func(f *fakeTarget) Target { return f },
		"built":     func(f *fakeTarget) Target { return fakeBuilder{f} },
	} {
		t.Run(name, func(t *testing.T) {
			v := randomTree(t, rng, 600, 1000)
			defer v.Release()
			chunks := chunksOf(t, v)
			target := &fakeTarget{t: t, yield: 3}
			r, err := BeginRestore(targetOf(target), 10, v.Manifest())
			require.NoError(t, err)
			var mu sync.Mutex
			given, back := map[*byte]bool{}, 0
			r.Recycle(func(data []byte) {
				for i := range data {
					data[i] = 0xff
				}
				mu.Lock()
				defer mu.Unlock()
				if back++; !given[&data[0]] {
					t.Error("bytes were not given to Accept, or came back twice")
				}
				delete(given, &data[0])
			})
			var joiners sync.WaitGroup
			order := append(rng.Perm(len(chunks)), rng.Perm(len(chunks))...)
			for from := range 4 {
				joiners.Go(func() {
					for i := from; i < len(order); i += 4 {
						data := bytes.Clone(chunks[order[i]])
						mu.Lock()
						given[&data[0]] = true
						mu.Unlock()
						if _, err := r.Accept(uint32(order[i]), data); err != nil {
							t.Error(err)
						}
					}
				})
			}
			joiners.Wait()
			restored, err := r.Commit()
			require.NoError(t, err)
			target.requireRestored(10, v)
			require.Equal(t, v.AppHash(), restored.AppHash())
			restored.Release()
			require.Equal(t, len(order), back)
			require.Empty(t, given)
		})
	}
}
