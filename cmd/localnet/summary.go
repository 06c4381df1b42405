package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// summary is what --json writes.
type summary struct {
	Validators     int   `json:"validators"`
	Liars          int   `json:"liars"`
	Shards         int   `json:"shards,omitempty"` // storage nodes, one range each
	Keys           int   `json:"keys"`
	Height         int64 `json:"height"`          // of the network when the joiner arrived
	Chunks         int64 `json:"chunks"`          // of the joined snapshot
	ChunksRejected int64 `json:"chunks_rejected"` // damaged chunks received and rejected
	PeersRejected  int64 `json:"peers_rejected"`  // banned peers
	// From the start of the process to the network's height.
	JoinSeconds float64 `json:"join_seconds"`
	// Compared between the joiner's application and the validators' headers, at every height in
	// details.Compared.
	AppHashEqual bool   `json:"app_hash_equal"`
	JoinerHeight int64  `json:"joiner_height"`
	Way          string `json:"way"` // how it joined: transport, in-band, or sharded
}

// met reports whether the joiner received and rejected an invalid response.
func (s summary) met() bool { return s.ChunksRejected > 0 || s.PeersRejected > 0 }

// verdict returns an error that describes what is wrong. provable: a Byzantine peer misbehaved in a
// way that can be proved.
func (s summary) verdict(provable bool) error {
	switch {
	case s.JoinerHeight == 0:
		return fmt.Errorf("the node did not join")
	case !s.AppHashEqual:
		return fmt.Errorf("the joiner's app hash differs from the validators'")
	case provable && !s.met():
		return fmt.Errorf("nothing was rejected although there were Byzantine peers: nothing was requested from them")
	}
	return nil
}

func (s summary) write(path string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}

// details are shown but not written to the file.
type details struct {
	SnapshotHeight int64
	SnapshotBytes  int64
	RestoreSeconds string  // part of JoinSeconds for the state alone; "": not known
	Compared       []int64 // heights at which app hashes were compared
	VerifiedKey    string  // read from the joiner with a proof
}

// restore describes how much of JoinSeconds restoring the state took.
func (d details) restore() string {
	if d.RestoreSeconds == "" {
		return "5 s of it CometBFT's discovery of snapshots"
	}
	return d.RestoreSeconds + " s of it for the state: headers, manifest and chunks"
}

func (s summary) table(out io.Writer, d details) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if s.Shards > 0 {
		row("network", "%s, all but one in partial-state mode, %s, 1 joiner", count(s.Validators, "validator", "validators"), count(s.Shards, "storage node", "storage nodes"))
		row("keys", "%s", group(int64(s.Keys)))
		row("joined in", "%.1f s from command to following the head, from the state at height %d", s.JoinSeconds, d.SnapshotHeight)
	} else {
		row("network", "%s, %s, 1 joiner", count(s.Validators, "validator", "validators"), count(s.Liars, "Byzantine peer", "Byzantine peers"))
		row("keys", "%s", group(int64(s.Keys)))
		row("snapshot", "height %d, %s chunks, %s KB, each chunk verified on arrival", d.SnapshotHeight, group(s.Chunks), group(d.SnapshotBytes/1000))
		row("rejected", "%s, and %s for good", count(int(s.ChunksRejected), "damaged chunk", "damaged chunks"), count(int(s.PeersRejected), "peer", "peers"))
		row("joined in", "%.1f s from command to following the head (%s)", s.JoinSeconds, d.restore())
	}
	row("heights", "network %d, joiner %d", s.Height, s.JoinerHeight)
	if s.AppHashEqual {
		row("app hash", "equal at heights %s", list(d.Compared))
	} else {
		row("app hash", "DIFFERS")
	}
	if d.VerifiedKey != "" {
		row("proved read", "%s, from the joiner, checked against a light client's header", d.VerifiedKey)
	}
	_ = w.Flush() // writes to a terminal or a log
}

func list(heights []int64) string {
	text := ""
	for i, h := range heights {
		switch {
		case i == 0:
		case i == len(heights)-1:
			text += " and "
		default:
			text += ", "
		}
		text += fmt.Sprint(h)
	}
	return text
}
