package syncbench

import "github.com/starling-kv/starling/bench/harness"

// Result is the outcome of a run. Peers that did not take part are left out. Seconds are medians
// over the joins.
type Result struct {
	Keys      int     `json:"keys"`
	StarlingS float64 `json:"starling_s"` // from connecting to durable, verified state
	SDKIAVLS  float64 `json:"sdk_iavl_s,omitempty"`
	MemiavlS  float64 `json:"memiavl_s,omitempty"`
	FloorS    float64 `json:"floor_s"`
	CPUS      float64 `json:"cpu_s"`     // of server and joiner during a join
	Bytes     int64   `json:"bytes"`     // received by the joiner
	RSSBytes  int64   `json:"rss_bytes"` // peak of the joiner

	// Details.
	Starling Starling        `json:"starling"`
	SDK      *SDK            `json:"sdk_iavl,omitempty"`
	Memiavl  *Memiavl        `json:"memiavl,omitempty"`
	Floor    Floor           `json:"floor"`
	Seed     uint64          `json:"seed"`
	Repeat   int             `json:"repeat"`
	Machine  harness.Machine `json:"machine"`
	Goals    []Goal          `json:"targets"`
}

// Starling are the details of its joins.
type Starling struct {
	Seconds    []float64 `json:"seconds"` // of each join
	ServerCPUS float64   `json:"server_cpu_s"`
	JoinerCPUS float64   `json:"joiner_cpu_s"`
	ServerRSS  int64     `json:"server_rss_bytes"`
	Join       JoinStats `json:"join"` // the median one
}

// SDK are the details of the SDK's store.
type SDK struct {
	CreateS  float64 `json:"create_s"`
	RestoreS float64 `json:"restore_s"`
	CPUS     float64 `json:"cpu_s"`
	Chunks   int     `json:"chunks"`
	Bytes    int64   `json:"bytes"`     // of the chunks, compressed
	RSSBytes int64   `json:"rss_bytes"` // of one process that is both sides
}

// Memiavl are the details of memiavl.
type Memiavl struct {
	Seconds  []float64 `json:"seconds"`
	ExportS  float64   `json:"export_s"`
	ImportS  float64   `json:"import_s"`
	CPUS     float64   `json:"cpu_s"`
	Bytes    int64     `json:"bytes"`     // leaf records
	RSSBytes int64     `json:"rss_bytes"` // of one process that is both sides
}
