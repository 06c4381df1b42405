package liar

import (
	"fmt"
	"slices"
	"strings"
)

// Mode is one way to lie.
type Mode string

// The ways to lie. All but Alias and Lone are about chunks; those two serve their chunks as Mix does.
const (
	Mix      Mode = "mix"      // one of Corrupt, Truncate, Swap, Oversize and Junk, by the chunk's number
	Corrupt  Mode = "corrupt"  // one byte changed
	Truncate Mode = "truncate" // the end is missing
	Swap     Mode = "swap"     // another chunk's bytes
	Oversize Mode = "oversize" // bytes follow the chunk (bounded by maxOversize)
	Junk     Mode = "junk"     // random bytes of the right length
	Empty    Mode = "empty"    // no bytes
	Withhold Mode = "withhold" // "I do not have it"
	Alias    Mode = "alias"    // offers with the first byte of the metadata moved to the end of the hash
	Lone     Mode = "lone"     // one more offer, newer than all others, at a height that nobody else offers
)

// Modes lists all modes.
func Modes() []Mode {
	return []Mode{Mix, Corrupt, Truncate, Swap, Oversize, Junk, Empty, Withhold, Alias, Lone}
}

// mixed are the modes that Mix takes turns with: each is refused at once, by the bytes alone.
var mixed = []Mode{Corrupt, Truncate, Swap, Oversize, Junk}

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
