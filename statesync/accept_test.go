package statesync

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
)

// slowTarget writes when it is let to.
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

// A second good copy is done when the chunk is written, not before: else whoever brought it takes
// the restore for complete.
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
