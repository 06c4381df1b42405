package liar

import (
	"fmt"
	"slices"
	"strings"
)

// Mode is one way to lie.
type Mode string

// The ways to lie. The first ones damage chunks, whichever way they are asked for. Where the transport has a message of its own for what
// a mode is about, so that it can do more, "over the transport" says what; what is for the transport only serves chunks in-band as Mix does.
const (
	Mix      Mode = "mix"      // one of Corrupt, Truncate, Swap, Oversize and Junk, by the chunk's number
	Corrupt  Mode = "corrupt"  // one byte changed
	Truncate Mode = "truncate" // the end is missing
	Swap     Mode = "swap"     // another chunk's bytes
	Oversize Mode = "oversize" // bytes follow the chunk (bounded by maxOversize)
	Junk     Mode = "junk"     // random bytes of the right length
	Empty    Mode = "empty"    // no bytes

	// Equivocate damages in another way for each peer that asks.
	Equivocate Mode = "equivocate"
	// Stale gives what belongs to another height: chunks, manifests, commitments.
	Stale Mode = "stale"

	// These are about something else than chunks; chunks they serve as Mix does.
	Alias      Mode = "alias"      // in-band offers with the first byte of the metadata moved to the end of the hash
	Lone       Mode = "lone"       // one more offer, newer than all others, at a height that nobody else offers
	Manifest   Mode = "manifest"   // over the transport, a damaged manifest, and one of each chunk
	Commitment Mode = "commitment" // over the transport, a damaged statement of what the app hash commits to
	Header     Mode = "header"     // over the transport, light blocks with another app hash, cut short, or of another height
	Status     Mode = "status"     // over the transport, a status that nobody can read

	// These tell nothing that is wrong: nobody can prove anything.
	Withhold Mode = "withhold" // "I do not have it"; over the transport no answer at all
	Gone     Mode = "gone"     // "I do not have it", over the transport, too
	Slow     Mode = "slow"     // over the transport, the truth, some seconds late
	Drip     Mode = "drip"     // over the transport, the truth, DripRate bytes a second
	Last     Mode = "last"     // over the transport, the truth, but the last chunk of a snapshot never comes
)

// DripRate is how many bytes a second a node sends that drips. That is up to whoever runs it: the answers are those of an honest one.
const DripRate = 2048

// Modes lists all modes.
func Modes() []Mode {
	return []Mode{
		Mix, Corrupt, Truncate, Swap, Oversize, Junk, Empty, Equivocate, Stale, Alias, Lone, Manifest, Commitment, Header, Status,
		Withhold, Gone, Slow, Drip, Last,
	}
}

// mixed are the modes that Mix takes turns with: each is refused at once, by the bytes alone.
var mixed = []Mode{Corrupt, Truncate, Swap, Oversize, Junk}

// Provable says whether a node that joins over the transport can prove that who lies in this way does.
func (m Mode) Provable() bool {
	return !slices.Contains([]Mode{Withhold, Gone, Slow, Drip, Last}, m)
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
