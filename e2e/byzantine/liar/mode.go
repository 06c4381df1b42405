package liar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Mode is a kind of misbehaviour.
type Mode string

// Modes of serving nodes that join, and nodes with a sharded state. The first modes damage chunks,
// in-band and over the transport, and the multiproofs, upper trees and outlines of a sharded state.
// If the transport has a message for the object of a mode, "over the transport" describes it; modes
// for the transport only serve chunks in-band as Mix does.
const (
	// one of Corrupt, Truncate, Swap, Oversize and Junk, by the chunk's number
	Mix      Mode = "mix"
	Corrupt  Mode = "corrupt"  // one byte changed
	Truncate Mode = "truncate" // the end is missing
	Swap     Mode = "swap"     // another chunk's bytes
	Oversize Mode = "oversize" // extra bytes follow the chunk (at most maxOversize)
	Junk     Mode = "junk"     // random bytes of the right length
	Empty    Mode = "empty"    // no bytes

	// Equivocate damages the data differently for each peer.
	Equivocate Mode = "equivocate"
	// Stale serves data of another height: chunks, and over the transport also manifests and
	// commitments.
	Stale Mode = "stale"

	// These modes affect messages other than chunks; chunks are served as Mix does.
	// in-band offers with the first byte of the metadata moved to the end of the hash
	Alias Mode = "alias"
	// one more offer, newer than all others, at a height that no other node offers
	Lone Mode = "lone"
	// one more offer, at a height that the chain will not have for years
	Future Mode = "future"
	// damaged manifests: in in-band offers, and over the transport those of a snapshot and of
	// each chunk
	Manifest Mode = "manifest"
	// over the transport, a damaged commitment
	Commitment Mode = "commitment"
	// over the transport, light blocks with another app hash, cut short, or of another height
	Header Mode = "header"
	Status Mode = "status" // over the transport, a status that cannot be decoded

	// These modes send no false data, so nothing can be proved.
	// "I do not have it"; over the transport no answer at all, also for manifests
	Withhold Mode = "withhold"
	Gone     Mode = "gone" // "I do not have it", also over the transport
	Slow     Mode = "slow" // correct data, some seconds late
	Drip     Mode = "drip" // over the transport, correct data at DripRate bytes a second
	// over the transport, correct data, but the last chunk of a snapshot never comes
	Last Mode = "last"
)

// Modes of a validator's signatures (e2e/byzantine/voter). They have no effect on other nodes.
const (
	// a second vote, for another block or none, in the same round
	DoubleVote Mode = "double-vote"
	// a second proposal, of a block that does not exist, to every second peer
	DoublePropose Mode = "double-propose"
	Mute          Mode = "mute" // no votes or proposals for ten of every twenty heights
)

// Simulate answers clients that simulate calls of programs with false codes, gas and keys.
const Simulate Mode = "simulate"

// Attacks on peers that the node starts by itself (e2e/byzantine/attack).
const (
	Babble  Mode = "babble"  // meaningless p2p messages, on every channel
	Spam    Mode = "spam"    // invalid transactions, through the mempool
	Flood   Mode = "flood"   // transport requests, as many at a time as a peer allows
	Connect Mode = "connect" // a thousand connections that are held, half open, or closed at once
	Garbage Mode = "garbage" // bytes that are not a handshake
)

// DripRate is the bytes a second that a node sends in mode Drip. Package peer sets it as the node's
// rate limit: the answers themselves are those of an honest node.
const DripRate = 2048

// Serving lists the modes of serving nodes that join. A node has at most one of them: two kinds of
// damage to the same bytes might cancel out.
func Serving() []Mode {
	return []Mode{
		Mix, Corrupt, Truncate, Swap, Oversize, Junk, Empty, Equivocate, Stale, Alias, Lone, Future, Manifest, Commitment, Header, Status,
		Withhold, Gone, Slow, Drip, Last,
	}
}

// Modes lists all modes.
func Modes() []Mode {
	return append(Serving(), DoubleVote, DoublePropose, Mute, Simulate, Babble, Spam, Flood, Connect, Garbage)
}

// mixed are the modes that Mix alternates between: each is detected at once, by the bytes alone.
var mixed = []Mode{Corrupt, Truncate, Swap, Oversize, Junk}

// Provable reports whether a node that joins over the transport can prove this misbehaviour.
func (m Mode) Provable() bool {
	return slices.Contains(Serving(), m) && !slices.Contains([]Mode{Withhold, Gone, Slow, Drip, Last}, m)
}

// Names lists the names of all modes for help texts.
func Names() string {
	names := make([]string, 0, len(Modes()))
	for _, mode := range Modes() {
		names = append(names, string(mode))
	}
	return strings.Join(names, ", ")
}

// ParseMode reads the name of a mode.
func ParseMode(name string) (Mode, error) {
	if !slices.Contains(Modes(), Mode(name)) {
		return "", fmt.Errorf("%q is not a mode: use one of %s", name, Names())
	}
	return Mode(name), nil
}

// Set is the set of modes of one node.
type Set []Mode

// ParseSet parses comma-separated names of modes.
func ParseSet(list string) (Set, error) {
	var set Set
	var serving []string
	for name := range strings.SplitSeq(list, ",") {
		mode, err := ParseMode(strings.TrimSpace(name))
		switch {
		case err != nil:
			return nil, err
		case set.Has(mode):
			return nil, fmt.Errorf("%q is named twice", mode)
		case slices.Contains(Serving(), mode):
			serving = append(serving, string(mode))
		}
		set = append(set, mode)
	}
	if len(serving) > 1 {
		return nil, errors.New(strings.Join(serving, " and ") + " change the same answers: name only one of them")
	}
	return set, nil
}

// Has reports whether a mode is in the set.
func (s Set) Has(m Mode) bool { return slices.Contains(s, m) }

// Serves returns the mode of serving nodes that join; "" if the node serves correct data.
func (s Set) Serves() Mode {
	for _, mode := range s {
		if slices.Contains(Serving(), mode) {
			return mode
		}
	}
	return ""
}

// Provable reports whether a node that joins over the transport can prove one of the modes.
func (s Set) Provable() bool { return slices.ContainsFunc(s, Mode.Provable) }
