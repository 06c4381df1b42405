package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/dsm"
)

// Policy holds the settings of a sharded state, and what is a matter of judgement.
type Policy struct {
	// MaxLagBlocks and MaxLagBytes limit how far the durable height of a replica may be behind the
	// last block, in blocks and in bytes of their updates. A replica acknowledges a block when the
	// next one's header is proved: below 3 blocks all would always wait.
	MaxLagBlocks int64
	MaxLagBytes  uint64
	MinAcks      int // replicas of each range that must be within the lag; at least 1
	// KeepBlocks and KeepBytes are how much is kept of a range although all in step have it: what a
	// replica that fetched chunks needs to follow from there. So it is to be more than the blocks
	// between two snapshots, and those that are made while chunks are fetched.
	KeepBlocks int64
	KeepBytes  uint64
	Senders    int // validators that look after an update to a replica in the first place

	Stagger             time.Duration // between these: enough for one to have sent it
	Patience            time.Duration // after which the next Senders look after it, too
	Poll                time.Duration // of a node that was not heard of for longer
	BackOff, MaxBackOff time.Duration // after a failure of a node; it doubles
}

// DefaultPolicy allows a replica to restart without leaving the queue.
func DefaultPolicy() Policy {
	return Policy{
		MaxLagBlocks: 1000, MaxLagBytes: 256 << 20, MinAcks: 1, KeepBlocks: 2000, KeepBytes: 64 << 20, Senders: 2,
		Stagger: 200 * time.Millisecond, Patience: time.Second, Poll: 500 * time.Millisecond, BackOff: 100 * time.Millisecond, MaxBackOff: 2 * time.Second,
	}
}

const minLagBlocks = 3

// ErrPolicy is wrapped by the errors of New.
var ErrPolicy = errors.New("the settings for storage nodes are wrong")

func (p Policy) check(ranges *dsm.Ranges) error {
	switch {
	case p.MaxLagBlocks < minLagBlocks:
		return fmt.Errorf("%w: a lag of %d blocks: a replica acknowledges a block after the next one, so it must be %d at least",
			ErrPolicy, p.MaxLagBlocks, minLagBlocks)
	case p.MaxLagBytes == 0 || p.Senders < 1 || p.Stagger <= 0 || p.Patience <= 0 || p.Poll <= 0 || p.BackOff <= 0 || p.MaxBackOff < p.BackOff || p.KeepBlocks < 0:
		return fmt.Errorf("%w: a limit or a time is not positive", ErrPolicy)
	case p.MinAcks < 1:
		return fmt.Errorf("%w: min_acks is %d, it must be 1 at least", ErrPolicy, p.MinAcks)
	}
	for i := range ranges.Len() {
		if s := ranges.Shard(i); len(s.Replicas) < p.MinAcks {
			return fmt.Errorf("%w: min_acks is %d, and range %v has %d replicas", ErrPolicy, p.MinAcks, s.Range, len(s.Replicas))
		}
	}
	return nil
}

// Event is what happened: one of the types below, by value. Events about unknown nodes and ranges,
// and answers to what is not in flight, are ignored.
type Event interface{ event() }

type (
	// Validators: from now on there are so many, and the caller is number Self in an order that all
	// of them know; below 0: it is none of them, and sends only what nobody else does. Initially it
	// is the only one.
	Validators struct{ Count, Self int }
	// Committed: a block was committed, one height above the last, and its updates are at hand.
	// Bytes are their lengths, by number of the range.
	Committed struct {
		Height int64
		Bytes  []uint64
	}
	// Sent ends a Send: the replica's answer to the last part of an update, or to a probe that
	// found nothing missing. Complete: the replica has all of the update.
	Sent struct {
		Node     dsm.Node
		Shard    int
		Answer   dsm.UpdateAnswer
		Complete bool
	}
	// NotSent ends a Send that failed.
	NotSent struct {
		Node  dsm.Node
		Shard int
	}
	// Claimed answers Poll, and may come without one.
	Claimed struct {
		Node   dsm.Node
		Claims []dsm.Claim
	}
	// NotPolled ends a Poll that failed.
	NotPolled struct{ Node dsm.Node }
	// Up: a node is connected (again): its failures are forgotten.
	Up struct{ Node dsm.Node }
	// Tick: time has passed, as with every other event.
	Tick struct{}
)

func (Validators) event() {}
func (Committed) event()  {}
func (Sent) event()       {}
func (NotSent) event()    {}
func (Claimed) event()    {}
func (NotPolled) event()  {}
func (Up) event()         {}
func (Tick) event()       {}

// Action is what the caller must do: one of the types below, by value, in the order given.
type Action interface{ action() }

type (
	// Send sends the update of a height to a replica of a range, part by part: with Probe, a probe
	// first, and then only from where that one's answer says. The caller reports Sent or NotSent.
	// One Send is in flight for a replica of a range at a time.
	Send struct {
		Node   dsm.Node
		Shard  int
		Height int64
		Probe  bool
	}
	// Poll asks a node for its claims. The caller reports Claimed or NotPolled. One is in flight
	// for a node at a time.
	Poll struct{ Node dsm.Node }
	// Forget: the updates of a range up to a height are no longer needed. One that is being sent
	// just now may be kept until then.
	Forget struct {
		Shard  int
		Height int64
	}
	// Left: a replica lags too much and is sent no more updates. It is to fetch chunks.
	Left struct {
		Node          dsm.Node
		Shard         int
		Durable, Head int64
	}
	// Back: a replica that had left is in step again.
	Back struct {
		Node  dsm.Node
		Shard int
	}
)

func (Send) action()   {}
func (Poll) action()   {}
func (Forget) action() {}
func (Left) action()   {}
func (Back) action()   {}

// State is the standing of a replica of a range.
type State int

// The states of a replica.
const (
	Unheard State = iota // it has said nothing since the start
	InStep               // it gets updates
	Lagging              // it has left the queue
)

func (s State) String() string { return [...]string{"unheard", "in step", "lagging"}[s] }

// Lag is where a replica stands.
type Lag struct {
	Node    dsm.Node
	State   State
	Durable int64  // as it said last
	Blocks  int64  // behind the last block
	Bytes   uint64 // of the updates of these that are in the queue
	Within  bool   // it counts towards MinAcks
}

// Block is a range that the next block waits for.
type Block struct {
	Range    dsm.Range
	Replicas []Lag
}
