package app

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// Runs of deleted keys that grow, split and come back: what floor remembers of them is never out of date.
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
				o.set(name(i), nil)
				there[i] = false
			case 3:
				o.set(name(i), []byte("y"))
				there[i] = true
			case 4: // set and taken back
				mark := o.mark()
				o.set(name(i), []byte("z"))
				o.set(name(rng.IntN(keys)), nil)
				o.floor(name(rng.IntN(keys)))
				o.undo(mark)
			default:
				want := i
				for want >= 0 && !there[want] {
					want--
				}
				got, _ := o.floor(name(i))
				if want < 0 {
					require.Nil(t, got, "seed %d", seed)
				} else {
					require.Equal(t, name(want), got, "seed %d", seed)
				}
			}
		}
	}
}

// An admin cleans up, and every text in the same block looks for a grant beyond what was revoked: without memory of it each would
// walk over all of it, and the block would take minutes.
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
