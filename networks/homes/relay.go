package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
	"github.com/starling-kv/starling/e2e/runner"
)

const (
	relayHost       = "relay"
	relayPort       = 30000 // of its control endpoint; links follow
	portsPerLink    = 20
	p2p             = 26656
	transportOffset = 10 // nodes expect a peer's transport at its p2p port + 10
)

// regions are the locations of the nodes; all others are in Europe.
var regions = map[string]string{"validator-2": "america", "validator-3": "asia", "liar": "asia"}

// distances are one-way delays, about half the round trips that public measurements between data
// centres show.
var distances = map[[2]string]time.Duration{
	{"europe", "america"}: 45 * time.Millisecond,
	{"europe", "asia"}:    110 * time.Millisecond,
	{"america", "asia"}:   80 * time.Millisecond,
}

const nearby = 2 * time.Millisecond

// relay plans the links of a network's relay.
type relay struct {
	config link.Config
	delays []link.Setting
}

// link plans a link between two nodes, and returns the address of the relay that from dials.
func (r *relay) link(from, to *runner.Home) (address string) {
	port := relayPort + portsPerLink*(1+len(r.config.Links)/2)
	for _, offset := range []int{0, transportOffset} {
		r.config.Links = append(r.config.Links, link.Link{
			From: from.Name, To: to.Name, Listen: fmt.Sprintf("0.0.0.0:%d", port+offset), Target: fmt.Sprintf("%s:%d", to.Name, p2p+offset),
		})
	}
	delay := link.Treatment{Delay: distance(from.Name, to.Name)}
	r.delays = append(r.delays,
		link.Setting{From: from.Name, To: to.Name, Treatment: delay}, link.Setting{From: to.Name, To: from.Name, Treatment: delay})
	return fmt.Sprintf("%s:%d", relayHost, port)
}

// write writes the relay's configuration, and the delays it is given once it runs.
func (r *relay) write(dir string) error {
	r.config.Control = fmt.Sprintf("0.0.0.0:%d", relayPort)
	if err := r.config.Write(filepath.Join(dir, "relay.json")); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r.delays, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "delays.json"), append(text, '\n'), 0o644)
}

func distance(a, b string) time.Duration {
	region := func(name string) string {
		if is, ok := regions[name]; ok {
			return is
		}
		return "europe"
	}
	for _, pair := range [][2]string{{region(a), region(b)}, {region(b), region(a)}} {
		if d, ok := distances[pair]; ok {
			return d
		}
	}
	return nearby
}
