package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/starling-kv/starling/internal/sleep"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/statesync/lightblocks"
	"github.com/starling-kv/starling/statesync/peers"
	"github.com/starling-kv/starling/transport"
)

// ErrTrust: the trusted header is unusable: it is too old, or none of the peers that the operator
// named has it. Nothing was fetched. It also matches config.ErrInvalid: the operator must name
// another header or other peers.
var ErrTrust = errors.New("the trusted header is unusable")

const (
	// trustWarning is the time without the trusted header after which it is logged, trustReminder
	// the time until it is logged again.
	trustWarning  = 3 * time.Second
	trustReminder = 30 * time.Second
	// trustGrace is the minimum time of the search: discovered peers may have the header after the
	// named ones have pruned it.
	trustGrace = 6 * time.Second
	// trustPause is the time between two rounds of requests to all peers.
	trustPause = time.Second
)

// trusted waits until a peer has sent the trusted header. Before that nothing can be proved, so
// nothing is fetched. Discovered peers cannot end the wait. The error is ErrTrust, or that of ctx.
func (j *joining) trusted(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := &denials{named: j.network.named(), hosts: map[transport.ID]string{}, why: map[transport.ID]error{}}
	defer j.network.peers.Watch(peers.Watcher{Up: func(c transport.Conn) { heard.met(c.Remote()) }})()
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
		if time.Since(warned) >= trustReminder {
			warned = time.Now()
			j.log.Error("No peer has sent the trusted header yet: compare its height and hash with a trusted source",
				"height", height, "hash", j.Config.CometBFT.StateSync.TrustHash, "answers", text)
		}
		if final && time.Since(began) >= trustGrace {
			cancel()
			<-result
			return config.Invalid(fmt.Errorf("%w: all named peers have answered, and none has block %d with hash %s: %s: compare height and hash with a trusted source",
				ErrTrust, height, j.Config.CometBFT.StateSync.TrustHash, text))
		}
	}
}

// askTrusted requests the header repeatedly.
func (j *joining) askTrusted(ctx context.Context, heard *denials) error {
	for {
		_, err := j.network.verifier.Trusted(ctx, heard.denied)
		if err == nil || ctx.Err() != nil || errors.Is(err, lightblocks.ErrTrustExpired) ||
			errors.Is(err, lightblocks.ErrConflict) || errors.Is(err, lightblocks.ErrClosed) {
			return err
		}
		if err := sleep.For(ctx, trustPause); err != nil {
			return err
		}
	}
}

// denials are the responses of peers that do not have the trusted header.
type denials struct {
	named []transport.Address // named by the operator: with an id, an address, or both

	mu    sync.Mutex
	hosts map[transport.ID]string // of peers that have been connected; guarded by mu
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

// called returns the name of a peer or the address of an RPC server.
func called(a transport.Address) string {
	if a.HostPort == "" {
		return string(a.ID)
	}
	return a.String()
}

// denialsShown limits the responses that summary quotes.
const denialsShown = 10

// summary reports whether all peers named by the operator have answered, and describes all
// responses.
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
		lines = append(lines, "no response from "+strings.Join(silent, ", "))
	}
	return final, strings.Join(lines, "; ")
}
