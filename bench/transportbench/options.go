package transportbench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are what a run is asked for.
type Options struct {
	Sizes  []int // of answers, in bytes
	Peers  []int // how many fetch at once
	Rounds int
	MiB    int           // of answers in a turn, all peers together
	Limit  time.Duration // a turn ends after it, whatever has come until then
	// Device is the server's device and the client's, "D" or "D,D": names, or addresses that they
	// have; "": the first one that can be used, for both.
	Device    string
	Guest     bool
	Reference string // a built program, the raw reference; "": it is built where there is a device
	Dir       string // for programs that are built; "": the system's temporary folder
}

// Limits of options: what the guest's memory has room for.
const (
	maxSize  = 4 << 20
	maxPeers = 8
)

// Check returns an error that names the flag that is out of range.
func (o Options) Check() error {
	if len(o.Sizes) == 0 || len(o.Peers) == 0 {
		return fmt.Errorf("--sizes and --peers must name one number at least")
	}
	for _, s := range o.Sizes {
		if s < 1<<10 || s > maxSize {
			return fmt.Errorf("--sizes has %s, each must be from 1KiB to %s", sizeText(s), sizeText(maxSize))
		}
	}
	for _, p := range o.Peers {
		if p < 1 || p > maxPeers {
			return fmt.Errorf("--peers has %d, each must be from 1 to %d", p, maxPeers)
		}
	}
	switch {
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("--rounds is %d, it must be from 1 to 100", o.Rounds)
	case o.MiB < 1 || o.MiB > 1<<16:
		return fmt.Errorf("--mib is %d, it must be from 1 to 65536", o.MiB)
	case o.Limit < 10*time.Millisecond:
		return fmt.Errorf("--limit is %v, it must be 10ms or more", o.Limit)
	case strings.Count(o.Device, ",") > 1:
		return fmt.Errorf("--device is %q, it names one device, or the server's and the client's", o.Device)
	case o.Guest && o.Device != "":
		return fmt.Errorf("--device is %q: the guest has devices of its own", o.Device)
	case o.Guest && o.Reference != "":
		return fmt.Errorf("--reference is %q: for the guest it is built", o.Reference)
	}
	return nil
}

const (
	// flight is how many calls of a peer are under way, if their answers have room in inFlight: a
	// server gives no host more of its memory.
	flight   = 4
	inFlight = 32 << 20
)

// flightOf returns how many calls of each peer are under way.
func flightOf(size, peers int) int { return max(1, min(flight, inFlight/(size*peers))) }

// ParseSizes reads "64KiB,1MiB": bytes, or with a unit.
func ParseSizes(text string) (sizes []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		number, unit := word, 1
		for _, u := range units {
			if n, is := strings.CutSuffix(word, u.name); is {
				number, unit = n, u.bytes
				break
			}
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > maxSize {
			return nil, fmt.Errorf("--sizes has %q, it takes sizes such as 65536, 64KiB or 1MiB, of %s at most", word, sizeText(maxSize))
		}
		sizes = append(sizes, n*unit)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes), nil
}

var units = []struct {
	name  string
	bytes int
}{{"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

func sizeText(bytes int) string {
	for _, u := range units {
		if bytes%u.bytes == 0 {
			return fmt.Sprintf("%d%s", bytes/u.bytes, u.name)
		}
	}
	return fmt.Sprint(bytes)
}

func sizesText(sizes []int) string {
	var texts []string
	for _, s := range sizes {
		texts = append(texts, sizeText(s))
	}
	return strings.Join(texts, ",")
}
