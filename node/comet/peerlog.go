package comet

import (
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
)

// peerLog adds hints to CometBFT's log lines about peers. CometBFT refuses the second of two nodes
// on one host unless p2p.allow_duplicate_ip is set: the refusing node logs it at level info, and
// the other node only sees the connection end. It also refuses, at level info, a peer that has the
// ID of this node or of another peer: an operator may have copied a home with its node key.
type peerLog struct {
	log.Logger
	hints *peerHints
}

// CometBFT's messages: p2p/switch.go and, in the errors, p2p/errors.go and p2p/transport.go.
const (
	peerRejected = "Inbound Peer rejected"
	peerRetried  = "Error reconnecting to peer. Trying again"
	dialFailed   = "Error dialing peer"
	duplicate    = "duplicate CONN<"
	handshakeEnd = "secret conn failed: EOF"
	handshakeOff = "secret conn failed: read tcp" // followed by "connection reset"
	duplicateID  = "duplicate ID<"
)

// maxHints limits the number of addresses in peerHints, and the number of its refusals.
const maxHints = 64

// Two nodes that dial each other at the same time make one refusal of a duplicate ID. A second node
// with the ID of a peer dials again every few seconds: it makes twinRefusals in twinWindow.
const (
	twinRefusals = 6
	twinWindow   = 5 * time.Minute
)

// peerHints are the addresses for which a hint was logged: one hint each.
type peerHints struct {
	mu       sync.Mutex
	given    map[string]bool      // guarded by mu; at most maxHints
	refusals map[string]*refusals // by node ID; guarded by mu; at most maxHints
}

// refusals counts how often a node ID was refused because a peer has it.
type refusals struct {
	since time.Time
	count int
}

func newPeerLog(logger log.Logger) peerLog {
	return peerLog{logger, &peerHints{given: make(map[string]bool), refusals: make(map[string]*refusals)}}
}

// twin counts a refusal of a duplicate node ID, and reports whether there are too many for nodes
// that dial each other at the same time.
func (h *peerHints) twin(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.refusals, func(_ string, r *refusals) bool { return time.Since(r.since) >= twinWindow })
	r := h.refusals[id]
	if r == nil {
		if len(h.refusals) >= maxHints {
			return false
		}
		r = &refusals{since: time.Now()}
		h.refusals[id] = r
	}
	r.count++
	return r.count >= twinRefusals
}

// first reports whether no hint was logged for this address yet.
func (h *peerHints) first(address string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.given[address] || len(h.given) >= maxHints {
		return false
	}
	h.given[address] = true
	return true
}

func (l peerLog) With(keyvals ...any) log.Logger { return peerLog{l.Logger.With(keyvals...), l.hints} }

func (l peerLog) Info(message string, keyvals ...any) {
	l.Logger.Info(message, keyvals...)
	l.hint(message, keyvals)
}

func (l peerLog) Error(message string, keyvals ...any) {
	l.Logger.Error(message, keyvals...)
	l.hint(message, keyvals)
}

func (l peerLog) hint(message string, keyvals []any) {
	if rejected, is := valueOf(keyvals, "err").(p2p.ErrRejected); is && rejected.IsSelf() {
		address := rejected.Addr()
		if host := address.IP.String(); l.hints.first("self " + host) {
			l.Logger.Error("a peer has this node's own ID: this node reached itself, or another node has a copy of its config/node_key.json; "+
				"create a home for each node with starlingd init", "host", host, "id", address.ID)
		}
		return
	}
	switch message {
	case peerRejected:
		cause := textOf(keyvals, "err")
		if _, rest, is := strings.Cut(cause, duplicateID); is {
			id, _, _ := strings.Cut(rest, ">")
			if l.hints.twin(id) && l.hints.first("twin "+id) {
				l.Logger.Error("two peers have one node ID, and only one of them is connected: one node has a copy of the other's config/node_key.json; "+
					"create a home for each node with starlingd init", "id", id)
			}
			return
		}
		_, rest, is := strings.Cut(cause, duplicate)
		if !is {
			return
		}
		address, _, _ := strings.Cut(rest, ">")
		host, _, err := net.SplitHostPort(address)
		if err == nil && l.hints.first("from "+host) {
			l.Logger.Error("refused a second node of one host: if several nodes run there, set allow_duplicate_ip = true in [p2p] of this node's config.toml",
				"host", host)
		}
	case peerRetried, dialFailed:
		cause := textOf(keyvals, "err")
		if !strings.Contains(cause, handshakeEnd) && !strings.Contains(cause, handshakeOff) {
			return
		}
		if l.hints.first("to " + textOf(keyvals, "addr")) {
			l.Logger.Error("a peer closed the connection during the handshake: if it is connected to another node of this host, "+
				"it needs allow_duplicate_ip = true in [p2p] of its config.toml", "addr", textOf(keyvals, "addr"))
		}
	}
}

// textOf returns the value of a key as text.
func textOf(keyvals []any, key string) string {
	if value := valueOf(keyvals, key); value != nil {
		return fmt.Sprint(value)
	}
	return ""
}

// valueOf returns the value of a key; nil: there is none.
func valueOf(keyvals []any, key string) any {
	for i := 0; i+1 < len(keyvals); i += 2 {
		if keyvals[i] == key {
			return keyvals[i+1]
		}
	}
	return nil
}
