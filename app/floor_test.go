package app

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// Runs of deleted keys grow, split and come back; the results that floor remembers for them are
// never outdated.
func TestFloorOverDeletedRuns(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const keys = 12
		name := func(i int) []byte { return fmt.Appendf(nil, "%02d", i) }
		state := map[string]string{}
		there := make([]bool, keys)
		for i := range there {
			if there[i] = rng.IntN(4) > 0; there[i] {
				state[string(name(i))] = "x"
			}
		}
		o := newOverlay(newBase(t, state))
		for range 500 {
			i := rng.IntN(keys)
			switch rng.IntN(8) {
			case 0, 1, 2:
				must(o.set(name(i), nil))
				there[i] = false
			case 3:
				must(o.set(name(i), []byte("y")))
				there[i] = true
			case 4: // set and undone
				mark := o.mark()
				must(o.set(name(i), []byte("z")))
				must(o.set(name(rng.IntN(keys)), nil))
				_, _, err := o.nearest(name(rng.IntN(keys)), false)
				require.NoError(t, err)
				o.undo(mark)
			default:
				want, below := i, rng.IntN(2) == 0
				if below {
					want--
				}
				for want >= 0 && !there[want] {
					want--
				}
				got, _, err := o.nearest(name(i), below)
				require.NoError(t, err)
				if want < 0 {
					require.Nil(t, got, "seed %d", seed)
				} else {
					require.Equal(t, name(want), got, "seed %d", seed)
				}
			}
		}
	}
}

// An admin revokes many grants, and every text transaction in the same block searches for a grant
// beyond them. If floor remembered nothing, each search would pass all of them, and the block would
// take minutes.
func TestManyRevokesBeforeTexts(t *testing.T) {
	a := startChain(t, &memoryStore{}, `{"open": true, "admins": ["@root"]}`)
	var grants, revokes []tx.Operation
	for i := range tx.MaxOperations {
		prefix := fmt.Sprintf("m%05d/", i)
		grants = append(grants, grantOp(account("alice"), prefix, 0))
		revokes = append(revokes, revokeOp(account("alice"), prefix))
	}
	require.Equal(t, []tx.Code{tx.CodeOK}, codes(runBlock(t, a, sign(t, "root", 0, grants...))))
	txs := [][]byte{sign(t, "root", 1, revokes...)}
	for i := range 5000 {
		txs = append(txs, fmt.Appendf(nil, "z%d=1", i))
	}
	for i, code := range codes(runBlock(t, a, txs...)) {
		require.Equal(t, tx.CodeOK, code, i)
	}
}
