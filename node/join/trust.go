package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/lightblocks"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/fastsync"
	"github.com/starling-kv/starling/transport"
)

// ErrTrust: the trusted header is of no use: it is too old, or none of the peers that the operator
// named has it. Nothing was fetched. It comes with config.ErrInvalid: a person must name another
// header, or other peers.
var ErrTrust = errors.New("the trusted header is of no use")

const (
	// trustWarning is the time without the trusted header after which the log says so;
	// trustReminder, the time until it says so again.
	trustWarning  = 3 * time.Second
	trustReminder = 30 * time.Second
	// trustGrace is how long a join asks in any case: peers that nobody named can have the header
	// when those that were named have removed it.
	trustGrace = 6 * time.Second
	// trustPause is the time between two questions to all peers.
	trustPause = time.Second
)

// trusted waits until a peer has given the trusted header. Before that nothing can be proved, so
// nothing is fetched. Peers that nobody named cannot end it. The error is ErrTrust, or that of ctx.
func (j *joining) trusted(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := &denials{named: j.network.named(), hosts: map[transport.ID]string{}, why: map[transport.ID]error{}}
	defer j.network.peers.Watch(fastsync.Watcher{Up: func(c transport.Conn) { heard.met(c.Remote()) }})()
	result := make(chan error, 1)
	go func() { result <- j.askTrusted(ctx, heard) }()
	tick := time.NewTicker(trustPause)
	defer tick.Stop()
	began, warned := time.Now(), time.Now().Add(trustWarning-trustReminder)
	height := j.Config.CometBFT.StateSync.TrustHeight
	for {
		select {
		case err := <-result:
			if errors.Is(err, lightblocks.ErrTrustExpired) {
				err = config.Invalid(fmt.Errorf("%w: %w", ErrTrust, err))
			}
			return err
		case <-tick.C:
		}
		final, text := heard.summary()
		if final && time.Since(began) >= trustGrace {
			cancel()
			<-result
			return config.Invalid(fmt.Errorf("%w: all peers that were named have answered, and none has block %d with hash %s: %s: compare height and hash with a source that you trust",
				ErrTrust, height, j.Config.CometBFT.StateSync.TrustHash, text))
		}
		if time.Since(warned) >= trustReminder {
			warned = time.Now()
			j.log.Error("No peer has given the trusted header yet: compare its height and hash with a source that you trust",
				"height", height, "hash", j.Config.CometBFT.StateSync.TrustHash, "answers", text)
		}
	}
}

// askTrusted asks again and again.
func (j *joining) askTrusted(ctx context.Context, heard *denials) error {
	for {
		_, err := j.network.verifier.Trusted(ctx, heard.denied)
		if err == nil || ctx.Err() != nil || errors.Is(err, lightblocks.ErrTrustExpired) ||
			errors.Is(err, lightblocks.ErrConflict) || errors.Is(err, lightblocks.ErrClosed) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(trustPause):
		}
	}
}

// denials are the answers of peers that do not have the trusted header.
type denials struct {
	named []transport.Address // whom the operator named: with an id, or an address, or both

	mu    sync.Mutex
	hosts map[transport.ID]string // of peers that were connected; guarded by mu
	why   map[transport.ID]error  // guarded by mu
}

func (d *denials) met(a transport.Address) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hosts[a.ID] = a.HostPort
}

func (d *denials) denied(id transport.ID, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why[id] = why
}

// called is the name of a peer; of an RPC server, its address.
func called(a transport.Address) string {
	if a.HostPort == "" {
		return string(a.ID)
	}
	return a.String()
}

// denialsShown limits the answers that summary quotes.
const denialsShown = 10

// summary reports whether all peers that the operator named have answered, and what all peers did.
func (d *denials) summary() (final bool, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	final = len(d.named) > 0
	var silent, lines []string
	for _, a := range d.named {
		answered := d.why[a.ID] != nil
		for id := range d.why {
			answered = answered || a.HostPort != "" && d.hosts[id] == a.HostPort
		}
		if !answered {
			final, silent = false, append(silent, called(a))
		}
	}
	for id, why := range d.why {
		lines = append(lines, fmt.Sprintf("%s: %v", called(transport.Address{ID: id, HostPort: d.hosts[id]}), why))
	}
	slices.Sort(lines)
	if more := len(lines) - denialsShown; more > 0 {
		lines = append(lines[:denialsShown], fmt.Sprintf("and %d more", more))
	}
	if len(silent) > 0 {
		lines = append(lines, "no answer from "+strings.Join(silent, ", "))
	}
	return final, strings.Join(lines, "; ")
}
