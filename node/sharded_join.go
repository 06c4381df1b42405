package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/join"
)

// joinSharded adapts an application whose state storage nodes keep to package join.
type joinSharded struct {
	*Application
	sharded *sharded
}

var _ join.Sharded = joinSharded{}

// Newest implements join.Sharded.
func (j joinSharded) Newest(ctx context.Context, limit int64) (int64, error) {
	s := j.sharded.store
	ctx, cancel := context.WithTimeout(ctx, s.times.answers)
	defer cancel()
	claims, err := s.source.Claims(ctx)
	// CometBFT can only be set to states after a block.
	t := takeUp{ranges: s.nodes().Ranges, name: s.name, initial: s.own.initial, least: s.own.initial, limit: limit, claims: claims}
	height, why := t.height()
	if why != nil && err != nil {
		why = fmt.Errorf("%w (%w)", why, err)
	}
	if why != nil {
		s.wait(why.Error())
		return 0, why
	}
	s.wait("")
	return height, nil
}

// TakeUp implements join.Sharded.
func (j joinSharded) TakeUp(ctx context.Context, height int64, appHash []byte) error {
	s, began := j.sharded.store, time.Now()
	if len(appHash) != len(avlstar.Hash{}) {
		return fmt.Errorf("the app hash of the state after block %d has %d bytes", height, len(appHash))
	}
	ctx, cancel := context.WithTimeout(ctx, s.times.upper)
	defer cancel()
	p, err := s.source.Upper(ctx, height, avlstar.Hash(appHash), s.depth)
	if err != nil {
		return err
	}
	v := p.Version()
	defer v.Release()
	took := time.Since(began)
	s.last.Store(height) // before the application asks which nodes must stay in memory
	if err := j.Restored(height, v); err != nil {
		return err
	}
	s.source.Begin(height)
	j.joined.Store(height)
	s.log.Info("Joining: the upper tree is complete", "height", height, "nodes", v.Memory().InnerNodes, "took", took.Round(time.Millisecond))
	return nil
}

// watchLost fails with ErrAway if the block being executed needs a part of the state that no
// storage node has any more: waiting does not resolve that.
func (n *Node) watchLost() {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-every.C:
		}
		if err := n.application.backing.lost(n.application.Height()); err != nil {
			n.fail(n.joinAgain(err))
			n.endLife() // New may be waiting in that block
			return
		}
	}
}

// joinAgain adds to ErrAway the command that joins again. Its trusted header is that of the last
// block of this home's state, which a join proved or CometBFT executed.
func (n *Node) joinAgain(err error) error {
	if !errors.Is(err, ErrAway) {
		return err
	}
	var (
		height int64
		hash   []byte
	)
	// Without the state, the operator must name a header.
	if states, openErr := n.databases.States(); openErr == nil {
		if state, loadErr := states.Load(); loadErr == nil && state.LastBlockHeight > 0 {
			height, hash = state.LastBlockHeight, state.LastBlockID.Hash
		}
	}
	return fmt.Errorf("%w: for this home: `%s`; move a validator's key and its signing state, data/priv_validator_state.json*, to the new home before its node takes part, and run only one of the two nodes",
		err, join.Command(n.config, height, hash))
}
