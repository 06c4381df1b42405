package comet

import (
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/cometbft/cometbft/libs/log"
	"github.com/cometbft/cometbft/p2p"
)

// peerLog adds hints to CometBFT's log lines about peers. CometBFT refuses the second of two nodes
// on one host unless p2p.allow_duplicate_ip is set: the refusing node logs it at level info, and
// the other node only sees the connection end. It also refuses, at level info, a peer that has the
// ID of this node: an operator may have copied a home with its node key.
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
)

// maxHints limits the number of addresses in peerHints.
const maxHints = 64

// peerHints are the addresses for which a hint was logged: one hint each.
type peerHints struct {
	mu    sync.Mutex
	given map[string]bool // guarded by mu; at most maxHints
}

func newPeerLog(logger log.Logger) peerLog {
	return peerLog{logger, &peerHints{given: make(map[string]bool)}}
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
		_, rest, is := strings.Cut(textOf(keyvals, "err"), duplicate)
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
