package comet

import (
	"context"
	"fmt"
	"time"

	dbm "github.com/cometbft/cometbft-db"
	"github.com/cometbft/cometbft/evidence"
	"github.com/cometbft/cometbft/libs/log"
	cmtstate "github.com/cometbft/cometbft/proto/tendermint/state"
	sm "github.com/cometbft/cometbft/state"
	cmttypes "github.com/cometbft/cometbft/types"
	"github.com/cosmos/gogoproto/proto"
	gogotypes "github.com/cosmos/gogoproto/types"

	"github.com/starling-kv/starling/statesync/lightblocks"
)

// A node that joins at height H has no block below H+1. But a block that it must accept may hold
// evidence of a validator's misbehaviour at H or below. CometBFT's evidence pool looks up the
// header, the commit and the validators of that height in its stores. Without them it rejects a
// block that all others have accepted, and the node stops permanently. A join therefore writes them
// to those stores.
// pool looks.
//
//	evidence of height h ──► blockstore H:h  block meta: header, time          (all evidence)
//	                     ──► blockstore C:h  commit                            (attacks on light clients)
//	                     ──► state validatorsKey:h  who could sign             (all evidence)
//
// If one of those blocks holds evidence, that evidence is recorded as committed in the evidence
// database. Without that record the node would accept the same evidence from a peer again and, as a
// proposer, put it into blocks that all others reject.

// AncestorsTimeout limits the time for fetching headers, so that Byzantine or silent peers cannot
// delay a join for longer. It is enough to try a thousand such peers.
const AncestorsTimeout = 2 * time.Minute

// checkpointInterval is CometBFT's valSetCheckpointInterval (state/store.go): the full validator
// set is stored at its multiples.
const checkpointInterval = 100_000

// Ancestors fetches the headers that evidence may refer to, from the state's height downwards: at
// most `most` headers, and none for which evidence has expired. Headers that no peer has are
// omitted and logged; they are the gap.
func Ancestors(ctx context.Context, v *lightblocks.Verifier, state sm.State, most int64, logger log.Logger) ([]lightblocks.Ancestor, Gap) {
	if most == 0 {
		return nil, Gap{}
	}
	began, from := time.Now(), state.LastBlockHeight
	lowest := max(from-most+1, state.InitialHeight)
	ctx, cancel := context.WithTimeout(ctx, AncestorsTimeout)
	defer cancel()
	found, err := v.Ancestors(ctx, from, func(h *cmttypes.Header) bool {
		return h.Height <= lowest ||
			evidence.IsEvidenceExpired(from, state.LastBlockTime, h.Height, h.Time, state.ConsensusParams.Evidence)
	})
	to := from + 1 - int64(len(found))
	if err != nil {
		logger.Error("Headers are missing: a block with evidence about a height below the first one would stop this node",
			"wanted", lowest, "first", to, "last", from, "err", err)
		return found, Gap{First: to, Wanted: lowest}
	}
	logger.Info("Fetched the headers that evidence may refer to", "first", to, "last", from, "took", time.Since(began).Round(time.Millisecond))
	return found, Gap{}
}

// saveAncestors writes records for which CometBFT has no function without a block: those of
// store/store.go (saveBlockToBatch) and state/store.go (saveValidatorsInfo), and the key of
// evidence/pool.go (markEvidenceAsCommitted), v0.40.0. The block store's base does not change:
// below it there are headers, but no blocks. Block sizes and transaction counts are unknown, and
// CometBFT does not read them there. fresh is set if found begins with the last block of CometBFT's
// state, whose validators the state has.
func saveAncestors(blockDB, stateDB, evidenceDB dbm.DB, found []lightblocks.Ancestor, fresh bool) (err error) {
	blocks, states, committed := blockDB.NewBatch(), stateDB.NewBatch(), evidenceDB.NewBatch()
	// only an error of Write matters
	defer func() { _, _, _ = blocks.Close(), states.Close(), committed.Close() }()
	// Height of the record with the current full set.
	var whole int64
	for i := len(found) - 1; i >= 0; i-- {
		a := found[i]
		meta := &cmttypes.BlockMeta{BlockID: a.Commit.BlockID, Header: *a.Header}
		if err := setProto(blocks, fmt.Sprintf("H:%v", a.Height), meta.ToProto()); err != nil {
			return err
		}
		if err := setProto(blocks, fmt.Sprintf("C:%v", a.Height), a.Commit.ToProto()); err != nil {
			return err
		}
		for _, ev := range a.Evidence {
			key := fmt.Sprintf("\x00%0.16X/%X", ev.Height(), ev.Hash())
			if err := setProto(committed, key, &gogotypes.Int64Value{Value: ev.Height()}); err != nil {
				return err
			}
		}
		if i == 0 && fresh {
			break // CometBFT's state has the validators of the last block
		}
		info := new(cmtstate.ValidatorsInfo)
		if whole == 0 || a.Validators != found[i+1].Validators || a.Height%checkpointInterval == 0 {
			whole = a.Height
			if info.ValidatorSet, err = a.Validators.ToProto(); err != nil {
				return fmt.Errorf("validators of height %d: %w", a.Height, err)
			}
		}
		info.LastHeightChanged = whole
		if err := setProto(states, validatorsKey(a.Height), info); err != nil {
			return err
		}
	}
	for _, batch := range []dbm.Batch{blocks, states, committed} {
		if err := batch.WriteSync(); err != nil {
			return err
		}
	}
	return nil
}

func setProto(to dbm.Batch, key string, message proto.Message) error {
	value, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("record %s: %w", key, err)
	}
	return to.Set([]byte(key), value)
}
