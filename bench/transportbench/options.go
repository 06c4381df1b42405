package transportbench

import (
	"time"

	"github.com/starling-kv/starling/bench/guest"
	"github.com/starling-kv/starling/bench/harness"
)

// Options configure a run.
type Options struct {
	// Target.Devices has the server's and the client's device. By default, both use the first
	// usable device.
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
	f.Sizes(&o.Sizes, "sizes", []int{64 << 10, 256 << 10, 1 << 20, 4 << 20}, 1<<10, maxSize, "sizes of responses")
	f.Ints(&o.Peers, "peers", []int{1, 2, 4, 8}, 1, maxPeers, "numbers of peers that fetch concurrently")
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of rounds; the result has their medians")
	f.Int(&o.MiB, "mib", 256, 1, 1<<16, "MiB of responses in a turn")
	f.Time(&o.Limit, "limit", 10*time.Second, 10*time.Millisecond, time.Hour, "time after which a turn ends")
	f.Program(&o.Reference, "reference")
	o.Target.Flags(f, &o.Reference)
}

const (
	// flight is the number of concurrent calls of a peer, if their responses fit into inFlight. A
	// server allows a host no more of its memory.
	flight   = 4
	inFlight = 32 << 20
)

// flightOf returns the number of concurrent calls of each peer.
func flightOf(size, peers int) int { return max(1, min(flight, inFlight/(size*peers))) }
