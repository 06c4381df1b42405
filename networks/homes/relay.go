package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/starling-kv/starling/e2e/relay/link"
)

// regions are the locations of the nodes; all others are in Europe.
var regions = map[string]string{"validator-2": "america", "validator-3": "asia", "liar": "asia"}

// distances are one-way delays, about half the round trips that public measurements between data
// centres show.
var distances = map[[2]string]time.Duration{
	{"europe", "america"}: 45 * time.Millisecond,
	{"europe", "asia"}:    farthest,
	{"america", "asia"}:   80 * time.Millisecond,
}

const (
	nearby   = 2 * time.Millisecond
	farthest = 110 * time.Millisecond
)

// writeRelay writes the relay's configuration, and the delays that are sent to it once it runs.
func writeRelay(dir string, config link.Config) error {
	if err := config.Write(filepath.Join(dir, "relay.json")); err != nil {
		return err
	}
	var delays []link.Setting
	for _, l := range config.Links {
		delay := link.Treatment{Delay: distance(l.From, l.To)}
		for _, s := range []link.Setting{{From: l.From, To: l.To, Treatment: delay}, {From: l.To, To: l.From, Treatment: delay}} {
			if !slices.Contains(delays, s) { // p2p and transport are two links
				delays = append(delays, s)
			}
		}
	}
	text, err := json.MarshalIndent(delays, "", "  ")
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
