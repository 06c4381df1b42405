package feed

import (
	"errors"
	"fmt"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// Policy holds the settings of a sharded state and the tunable parameters.
type Policy struct {
	// MaxLagBlocks and MaxLagBytes limit how far the durable height of a replica may be behind the
	// last block, in blocks and in bytes of updates. A replica acknowledges a block once the next
	// header is proved; with fewer than 3 blocks, every block would wait.
	MaxLagBlocks int64
	MaxLagBytes  uint64
	MinAcks      int // replicas of each range that must be within the lag; at least 1
	// Updates are kept although all replicas in step have them: those of the last KeepBlocks
	// blocks, while the updates of all ranges together have at most KeepBytes. A replica that
	// fetched its range needs them to continue from there. If they have been dropped meanwhile, it
	// fetches what has changed since, at a later height.
	KeepBlocks int64
	KeepBytes  uint64
	Senders    int // validators that are first responsible for sending an update to a replica

	Stagger             time.Duration // between these: enough for one of them to send it
	Patience            time.Duration // time after which the next Senders follow
	Poll                time.Duration // interval of polling a node that is otherwise silent
	BackOff, MaxBackOff time.Duration // pause after a node's failure; it doubles
}

// DefaultPolicy allows a replica to restart without leaving the queue.
func DefaultPolicy() Policy {
	return Policy{
		MaxLagBlocks: 1000, MaxLagBytes: 256 << 20, MinAcks: 1, KeepBlocks: 2000, KeepBytes: 256 << 20, Senders: 2,
		Stagger: 200 * time.Millisecond, Patience: time.Second, Poll: 500 * time.Millisecond, BackOff: 100 * time.Millisecond, MaxBackOff: 2 * time.Second,
	}
}

const minLagBlocks = 3

// ErrPolicy is wrapped by the errors of New.
var ErrPolicy = errors.New("invalid settings for storage nodes")

// Check reports whether the policy is valid for ranges and for those that will replace some of
// them. The error wraps ErrPolicy.
func (p Policy) Check(ranges *dsm.Ranges, next []dsm.Placement) error {
	switch {
	case p.MaxLagBlocks < minLagBlocks:
		return fmt.Errorf("%w: a lag of %d blocks: a replica acknowledges a block after the next one, so it must be at least %d",
			ErrPolicy, p.MaxLagBlocks, minLagBlocks)
	case p.MaxLagBytes == 0 || p.Senders < 1 || p.Stagger <= 0 || p.Patience <= 0 || p.Poll <= 0 || p.BackOff <= 0 || p.MaxBackOff < p.BackOff || p.KeepBlocks < 0:
		return fmt.Errorf("%w: a limit or a time is not positive", ErrPolicy)
	case p.MinAcks < 1:
		return fmt.Errorf("%w: min_acks is %d, it must be at least 1", ErrPolicy, p.MinAcks)
	}
	for s := range ranges.All(next) {
		if len(s.Replicas) < p.MinAcks {
			return fmt.Errorf("%w: range %v needs %d storage nodes (state.min_acks), it has %d; assign more, or set state.min_acks = 1 if a lost disk may lose the state",
				ErrPolicy, s.Range, p.MinAcks, len(s.Replicas))
		}
	}
	return nil
}

// Event is one of the types below, by value. Events about unknown nodes and ranges, and answers to
// requests that are not in flight, are ignored.
type Event interface{ event() }

type (
	// Validators sets the number of validators and the caller's index, Self, in an order that all
	// validators know. Self is negative if the caller is not a validator; it then sends only
	// updates that no validator sends. Initially the caller is the only validator.
	Validators struct{ Count, Self int }
	// Committed: a block was committed, one height above the last, and its updates are available.
	// Bytes are their lengths, by number of the range; those of ranges that are gone do not matter.
	Committed struct {
		Height int64
		Bytes  []uint64
	}
	// Change: the map of the ranges has changed. Ranges that stay keep their numbers and updates.
	// New ones get the next numbers, and begin with the next block. The caller drops the updates of
	// ranges that are gone, and ignores what is still reported about them. No block waits for the
	// ranges in Next, as dsm.(*Ranges).CheckNext accepts them. All ranges have at least MinAcks
	// replicas (Policy.Check).
	Change struct {
		Ranges *dsm.Ranges
		Next   []dsm.Placement
	}
	// Sent ends a Send with the replica's answer to the last part of the update, or to a probe
	// that found nothing missing. Complete: the replica has the whole update. Missing: a probe
	// found that the replica waits for this update, and has nothing of it from this node.
	Sent struct {
		Node              dsm.NodeID
		Shard             int
		Answer            dsm.UpdateAnswer
		Complete, Missing bool
	}
	// NotSent ends a Send that failed.
	NotSent struct {
		Node  dsm.NodeID
		Shard int
	}
	// Claimed answers a Poll; it may also come without one. Claims ascend, as dsm.DecodeClaims
	// returns them.
	Claimed struct {
		Node   dsm.NodeID
		Claims []dsm.Claim
	}
	// NotPolled ends a Poll that failed.
	NotPolled struct{ Node dsm.NodeID }
	// Up: a node has connected. Its failures are forgotten.
	Up struct{ Node dsm.NodeID }
	// Tick: time has passed. Time passes with every other event, too.
	Tick struct{}
)

func (Validators) event() {}
func (Committed) event()  {}
func (Change) event()     {}
func (Sent) event()       {}
func (NotSent) event()    {}
func (Claimed) event()    {}
func (NotPolled) event()  {}
func (Up) event()         {}
func (Tick) event()       {}

// Action is what the caller must do: one of the types below, by value, in the given order.
type Action interface{ action() }

type (
	// Send sends the update of a height to a replica of a range, part by part. With Probe, a probe
	// comes first, and sending begins where its answer says. The caller reports Sent or NotSent. At
	// most one Send is in flight for a replica of a range.
	Send struct {
		Node   dsm.NodeID
		Shard  int
		Height int64
		Probe  bool
	}
	// Poll requests a node's claims. The caller reports Claimed or NotPolled. At most one is in
	// flight for a node.
	Poll struct{ Node dsm.NodeID }
	// Forget: the updates of a range up to a height are no longer needed. An update that is being
	// sent may be kept until that Send ends.
	Forget struct {
		Shard  int
		Height int64
	}
	// Left: a replica is too far behind and receives no more updates. It must fetch its range.
	Left struct {
		Node          dsm.NodeID
		Shard         int
		Durable, Head int64
	}
	// Back: a replica that had left is in step again.
	Back struct {
		Node  dsm.NodeID
		Shard int
	}
)

func (Send) action()   {}
func (Poll) action()   {}
func (Forget) action() {}
func (Left) action()   {}
func (Back) action()   {}

// State is the state of a replica of a range.
type State int

// The states of a replica.
const (
	Unheard State = iota // it has not reported since the start
	InStep               // it receives updates
	Lagging              // it has left the queue
)

func (s State) String() string { return [...]string{"unheard", "in step", "lagging"}[s] }

// Lag describes how far a replica is behind.
type Lag struct {
	Node    dsm.NodeID
	State   State
	Durable int64  // as last reported
	Blocks  int64  // blocks behind the last block
	Bytes   uint64 // bytes of the updates of these blocks
	Within  bool   // it counts towards MinAcks
}

// Shard is a range with its number.
type Shard struct {
	dsm.Placement
	Number int
	Next   bool // it will replace current ranges, and no block waits for it
}

// Block is a range that the next block waits for.
type Block struct {
	Range    avlstar.KeyRange
	Replicas []Lag
}
