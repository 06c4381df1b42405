package liar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Mode is one way to misbehave.
type Mode string

// What a node serves to those that join from it. The first ones damage chunks, whichever way they
// are asked for. Where the transport has a message of its own for what a mode is about, so that it
// can do more, "over the transport" says what; what is for the transport only serves chunks in-band
// as Mix does.
const (
	// one of Corrupt, Truncate, Swap, Oversize and Junk, by the chunk's number
	Mix      Mode = "mix"
	Corrupt  Mode = "corrupt"  // one byte changed
	Truncate Mode = "truncate" // the end is missing
	Swap     Mode = "swap"     // another chunk's bytes
	Oversize Mode = "oversize" // bytes follow the chunk (bounded by maxOversize)
	Junk     Mode = "junk"     // random bytes of the right length
	Empty    Mode = "empty"    // no bytes

	// Equivocate damages in another way for each peer that asks.
	Equivocate Mode = "equivocate"
	// Stale gives what belongs to another height: chunks, over the transport manifests and
	// commitments, too.
	Stale Mode = "stale"

	// These are about something else than chunks; chunks they serve as Mix does.
	// in-band offers with the first byte of the metadata moved to the end of the hash
	Alias Mode = "alias"
	// one more offer, newer than all others, at a height that nobody else offers
	Lone Mode = "lone"
	// one more offer, at a height that the chain will not have for years
	Future Mode = "future"
	// damaged manifests: those of in-band offers, and over the transport that of a snapshot and of
	// each chunk
	Manifest Mode = "manifest"
	// over the transport, a damaged statement of what the app hash commits to
	Commitment Mode = "commitment"
	// over the transport, light blocks with another app hash, cut short, or of another height
	Header Mode = "header"
	Status Mode = "status" // over the transport, a status that nobody can read

	// These tell nothing that is wrong: nobody can prove anything.
	// "I do not have it"; over the transport no answer at all, about manifests, too
	Withhold Mode = "withhold"
	Gone     Mode = "gone" // "I do not have it", over the transport, too
	Slow     Mode = "slow" // the truth, some seconds late
	Drip     Mode = "drip" // over the transport, the truth, DripRate bytes a second
	// over the transport, the truth, but the last chunk of a snapshot never comes
	Last Mode = "last"
)

// What a validator signs (e2e/byzantine/voter). A node that is none does nothing in these modes.
const (
	// a second vote, for another block or none, in the same round
	DoubleVote Mode = "double-vote"
	// a second proposal, of a block that nobody has, to every second peer
	DoublePropose Mode = "double-propose"
	Mute          Mode = "mute" // neither votes nor proposals in every second ten heights
)

// What a node does to its peers without being asked (e2e/byzantine/attack).
const (
	Babble  Mode = "babble"  // p2p messages that make no sense, on every channel
	Spam    Mode = "spam"    // transactions that are not valid, through the mempool
	Flood   Mode = "flood"   // transport requests, as many at a time as a peer lets it have
	Connect Mode = "connect" // a thousand connections that are held, half open, or closed at once
	Garbage Mode = "garbage" // bytes that are no handshake
)

// DripRate is how many bytes a second a node sends that drips. That is up to whoever runs it: the
// answers are those of an honest one.
const DripRate = 2048

// Serving lists the modes of what a node serves. A node has one of them at most: two lies about the
// same bytes might add up to the truth.
func Serving() []Mode {
	return []Mode{
		Mix, Corrupt, Truncate, Swap, Oversize, Junk, Empty, Equivocate, Stale, Alias, Lone, Future, Manifest, Commitment, Header, Status,
		Withhold, Gone, Slow, Drip, Last,
	}
}

// Modes lists all modes.
func Modes() []Mode {
	return append(Serving(), DoubleVote, DoublePropose, Mute, Babble, Spam, Flood, Connect, Garbage)
}

// mixed are the modes that Mix takes turns with: each is refused at once, by the bytes alone.
var mixed = []Mode{Corrupt, Truncate, Swap, Oversize, Junk}

// Provable reports whether a node that joins over the transport can prove that who misbehaves in
// this way does.
func (m Mode) Provable() bool {
	return slices.Contains(Serving(), m) && !slices.Contains([]Mode{Withhold, Gone, Slow, Drip, Last}, m)
}

// Names lists all modes as a user types them.
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
		return "", fmt.Errorf("%q is no way to lie; known are %s", name, Names())
	}
	return Mode(name), nil
}

// Set is what one node does.
type Set []Mode

// ParseSet reads names of modes with commas between them.
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
		return nil, errors.New(strings.Join(serving, " and ") + " are about the same answers: name one of them")
	}
	return set, nil
}

// Has reports whether a mode is among them.
func (s Set) Has(m Mode) bool { return slices.Contains(s, m) }

// Serves is how a node lies to those that join from it; "": it tells them the truth.
func (s Set) Serves() Mode {
	for _, mode := range s {
		if slices.Contains(Serving(), mode) {
			return mode
		}
	}
	return ""
}

// Provable reports whether a node that joins over the transport can prove one of them.
func (s Set) Provable() bool { return slices.ContainsFunc(s, Mode.Provable) }
