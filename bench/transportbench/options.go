package transportbench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
)

// Options configure a run.
type Options struct {
	// Target.Device has the server's and the client's device, "D" or "D,D". By default, both use
	// the first usable device.
	guest.Target
	Sizes     []int // of responses, in bytes, ascending
	Peers     []int // numbers of concurrent peers
	Rounds    int
	MiB       int           // of responses in a turn, all peers together
	Limit     time.Duration // maximum duration of a turn
	Reference string        // path of the built raw reference
}

// Limits of options, so that everything fits into the VM's memory.
const (
	maxSize  = 4 << 20
	maxPeers = 8
)

// Flags adds the flags of transport.
func (o *Options) Flags(f *harness.Flags) {
	o.Sizes = []int{64 << 10, 256 << 10, 1 << 20, 4 << 20}
	f.Var((*sizes)(&o.Sizes), "sizes", "sizes of responses")
	f.Ints(&o.Peers, "peers", []int{1, 2, 4, 8}, 1, maxPeers, "numbers of peers that fetch concurrently")
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of rounds; the result has their medians")
	f.Int(&o.MiB, "mib", 256, 1, 1<<16, "MiB of responses in a turn")
	f.Time(&o.Limit, "limit", 10*time.Second, 10*time.Millisecond, time.Hour, "time after which a turn ends")
	f.Program(&o.Reference, "reference")
	o.Target.Flags(f, &o.Reference)
	f.Also(func() error {
		for _, n := range o.Sizes {
			if n < 1<<10 {
				return fmt.Errorf("--sizes has %s, each must be from 1KiB to %s", sizeText(n), sizeText(maxSize))
			}
		}
		if strings.Count(o.Device, ",") > 1 {
			return fmt.Errorf("--device is %q, it must name one device, or the server's and the client's", o.Device)
		}
		return nil
	})
}

// sizes is a flag value for a list of sizes.
type sizes []int

func (s *sizes) Type() string   { return "sizes" }
func (s *sizes) String() string { return sizesText(*s) }

// Set parses a list such as "64KiB,1MiB": bytes, with or without a unit.
func (s *sizes) Set(text string) error {
	var all []int
	for word := range strings.SplitSeq(text, ",") {
		number, unit := word, 1
		for _, u := range units {
			if n, is := strings.CutSuffix(word, u.name); is {
				number, unit = n, u.bytes
				break
			}
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > maxSize/unit {
			return fmt.Errorf("%q is not a size such as 65536, 64KiB or 1MiB (%s at most)", word, sizeText(maxSize))
		}
		all = append(all, n*unit)
	}
	slices.Sort(all)
	*s = slices.Compact(all)
	return nil
}

const (
	// flight is the number of concurrent calls of a peer, if their responses fit into inFlight. A
	// server allows a host no more of its memory.
	flight   = 4
	inFlight = 32 << 20
)

// flightOf returns the number of concurrent calls of each peer.
func flightOf(size, peers int) int { return max(1, min(flight, inFlight/(size*peers))) }

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
