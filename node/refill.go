package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	abcicli "github.com/cometbft/cometbft/abci/client"
	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/proxy"
	sm "github.com/cometbft/cometbft/state"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/event"
	"github.com/starling-kv/starling/node/buildinfo"
	"github.com/starling-kv/starling/node/comet"
	"github.com/starling-kv/starling/storage/events"
)

const (
	// refillBytes is the largest state, in bytes of memory, that is held a second time to make
	// events again.
	refillBytes = 256 << 20
	// leafMemory is about what a leaf takes in memory beside its record: its node, a share of the
	// inner ones, and rounding up.
	leafMemory = 320
	// refillEvery is the time between two looks whether the log has begun anew.
	refillEvery = 10 * time.Second
	// refillPause is the time between two looks for the block that proves what was executed.
	refillPause = 500 * time.Millisecond
)

// refillEvents makes the events again that the log of this node has lost, as far back as there are
// a stored snapshot and the blocks after it. Where that is not possible, or fails, the log begins
// where it does: watchers of older heights are told so.
//
//	snapshot at H ──► tree, beside that of the node ── blocks H+1 … the log's first ──► events
func (n *Node) refillEvents(ctx context.Context) {
	log := n.application.events
	if log == nil || n.application.sharded != nil { // storage nodes do not keep states for so long
		return
	}
	anew := log.Stats().Anew
	for n.refillOnce(ctx); ctx.Err() == nil; sleep(ctx, refillEvery) {
		if now := log.Stats().Anew; now != anew {
			anew = now
			n.refillOnce(ctx)
		}
	}
}

func (n *Node) refillOnce(ctx context.Context) {
	a := n.application
	first, upTo, missing := a.events.Missing()
	if !missing {
		return
	}
	blocks := n.Comet().BlockStore()
	from := int64(0)
	for _, pin := range a.state.Pins() { // ascending
		if pin.Height >= first-1 && pin.Height < upTo && pin.Height+1 >= blocks.Base() && blocks.Base() > 0 {
			from = pin.Height
			break
		}
	}
	if from == 0 {
		return
	}
	logger, began := n.log.With("module", "events"), time.Now()
	err := n.refillFrom(ctx, from, upTo)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		logger.Error("Events of blocks that the log has lost cannot be made again: watchers of these are told that they are compacted", "from", from+1, "to", upTo, "err", err)
	default:
		logger.Info("Made the events again that the log had lost", "from", a.events.Stats().Least, "to", upTo, "seconds", time.Since(began).Round(time.Millisecond).Seconds())
	}
}

// refillFrom executes the blocks in (from, upTo] on the snapshot at from. The next header proves
// each state, the first and the last one, too, before the events become visible.
func (n *Node) refillFrom(ctx context.Context, from, upTo int64) (err error) {
	defer func() {
		if cause := recover(); cause != nil { // CometBFT panics when it cannot read
			err = comet.Panicked(cause)
		}
	}()
	v, err := n.stateOfPin(from)
	if err != nil {
		return err
	}
	refill, err := n.application.events.Refill(from, upTo)
	if err != nil {
		v.Release()
		return err
	}
	newest, err := buildinfo.NewestAppVersion()
	if err != nil {
		v.Release()
		return err
	}
	replica, err := app.New(app.Options{
		Store: &fixedState{height: from, version: v}, ChainID: n.genesis.ChainID, NewestVersion: newest, Events: refilling{refill},
	})
	if err != nil {
		return err
	}
	defer replica.Forget()
	states, err := n.databases.States()
	if err != nil {
		return err
	}
	connection := proxy.NewAppConnConsensus(abcicli.NewLocalClient(nil, replica), proxy.NopMetrics())
	blocks := n.Comet().BlockStore()
	for height := from + 1; height <= upTo; height++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		block := blocks.LoadBlock(height)
		if block == nil {
			return fmt.Errorf("block %d is not there any more", height)
		}
		if err := matches(replica, block.AppHash); err != nil {
			return err
		}
		if _, err := sm.ExecCommitBlock(connection, block, log.NewNopLogger(), states, n.genesis.InitialHeight); err != nil {
			return err
		}
	}
	for blocks.LoadBlockMeta(upTo+1) == nil {
		if blocks.Base() > upTo+1 {
			return fmt.Errorf("block %d is not there any more", upTo+1)
		}
		sleep(ctx, refillPause)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := matches(replica, blocks.LoadBlockMeta(upTo+1).Header.AppHash); err != nil {
		return err
	}
	return refill.Commit()
}

// stateOfPin reads a stored snapshot into memory. The caller releases it.
func (n *Node) stateOfPin(height int64) (_ *avlstar.Version, err error) {
	pin, err := n.application.state.OpenPin(height)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, pin.Close()) }()
	meta, err := pin.Meta()
	if err != nil {
		return nil, err
	}
	v, err := avlstar.FromLeaves(meta.ChunkBytes, bounded(pin.Scan()))
	if err != nil {
		return nil, err
	}
	if hash := v.AppHash(); !bytes.Equal(hash[:], meta.AppHash) {
		v.Release()
		return nil, fmt.Errorf("the stored snapshot at height %d has app hash %s, it was %X when it was stored", height, hash, meta.AppHash)
	}
	return v, nil
}

// bounded ends the leaves with an error where they would take more than refillBytes.
func bounded(leaves iter.Seq2[avlstar.Leaf, error]) iter.Seq2[avlstar.Leaf, error] {
	return func(yield func(avlstar.Leaf, error) bool) {
		left := int64(refillBytes)
		for l, err := range leaves {
			if left -= int64(len(l.Key)) + int64(len(l.Value)) + leafMemory; left < 0 && err == nil {
				yield(avlstar.Leaf{}, fmt.Errorf("the state takes more than the %d bytes of memory that are taken for that", refillBytes))
				return
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// matches compares the last state of an application with what a header says.
func matches(a *app.App, appHash []byte) error {
	height, v := a.Latest()
	if v == nil {
		return errors.New("there is no state")
	}
	defer v.Release()
	if hash := v.AppHash(); !bytes.Equal(hash[:], appHash) {
		return fmt.Errorf("the state after block %d has app hash %s, and the next header says %X", height, hash, appHash)
	}
	return nil
}

// fixedState is a store that begins with a state, and keeps nothing.
type fixedState struct {
	height  int64
	version *avlstar.Version // passed on by Load
}

func (s *fixedState) Load() (int64, *avlstar.Version, error) { return s.height, s.version, nil }

func (s *fixedState) Commit(height int64, _, _ *avlstar.Version, _ []avlstar.Change) error {
	s.height = height
	return nil
}

func (s *fixedState) Durable() int64 { return s.height }

// refilling takes the events of blocks that are executed again.
type refilling struct{ *events.Refill }

func (refilling) Begin(int64) error            { return nil }
func (refilling) Committed(int64)              {}
func (r refilling) Commit(b event.Block) error { return r.Add(b) }

func (refilling) Answer(context.Context, event.Request, time.Duration) (event.Answer, error) {
	return event.Answer{}, errors.New("nobody watches blocks that are executed again")
}
