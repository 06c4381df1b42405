package syncbench

import (
	"context"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// sdkBegin, sdkRequest and sdkAnswer are copies of the types in bench/sdk/store and bench/sdk/node,
// whose module cannot be imported here. The fields are documented there.
type sdkBegin struct {
	Dir      string `json:"dir"`
	Backend  string `json:"backend"`
	Mode     string `json:"mode,omitempty"`
	Interval int64  `json:"interval,omitempty"`
	Records  bool   `json:"records,omitempty"`
}

type sdkRequest struct {
	Op       string `json:"op"`
	N        int    `json:"n,omitempty"`
	Snapshot bool   `json:"snapshot,omitempty"`
}

type sdkAnswer struct {
	Nanos     int64   `json:"nanos"`
	Seconds   float64 `json:"seconds"`
	CPUS      float64 `json:"cpu_s"`
	Chunks    int     `json:"chunks"`
	Bytes     int64   `json:"bytes"`
	Snapshots int     `json:"snapshots"`
	Busy      bool    `json:"busy"`

	ManifestMS float64 `json:"manifest_ms"`
	ServeCPUS  float64 `json:"serve_cpu_s"`
	PackCPUS   float64 `json:"pack_cpu_s"`
	UnpackCPUS float64 `json:"unpack_cpu_s"`
	VerifyCPUS float64 `json:"verify_cpu_s"`
	WriteCPUS  float64 `json:"write_cpu_s"`
	AgainS     float64 `json:"again_s"`
	AgainCPUS  float64 `json:"again_cpu_s"`
	Overhead   float64 `json:"overhead_bytes_per_leaf"`
	PlainBytes int64   `json:"plain_bytes"`

	// For bench/sdk/node.
	BlockNanos int64  `json:"block_nanos"`
	Root       []byte `json:"root"`
	PeakBytes  int64  `json:"peak_bytes"`
}

// sdkStore is a process of bench/sdk/store.
type sdkStore struct{ *harness.Process }

func startSDK(ctx context.Context, program string, b sdkBegin) (sdkStore, error) {
	p, err := harness.StartProgram(ctx, nameSDK, b, nil, program, "store")
	return sdkStore{p}, err
}

// commit makes a block of changes. If snapshot is set, it starts a snapshot of the new state.
func (s sdkStore) commit(changes []workload.Change, snapshot bool) (a sdkAnswer, err error) {
	err = s.AskWith(sdkRequest{Op: "commit", N: len(changes), Snapshot: snapshot}, changes, &a)
	return a, err
}

// create makes the snapshot for restore.
func (s sdkStore) create() (a sdkAnswer, err error) {
	err = s.Ask(sdkRequest{Op: "create"}, &a)
	return a, err
}

func (s sdkStore) restore() (a sdkAnswer, err error) {
	err = s.Ask(sdkRequest{Op: "restore"}, &a)
	return a, err
}

// join makes a home from the source's database with verified chunks.
func (s sdkStore) join() (a sdkAnswer, err error) {
	err = s.Ask(sdkRequest{Op: "join"}, &a)
	return a, err
}
