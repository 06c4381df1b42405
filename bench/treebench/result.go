package treebench

import (
	"github.com/starling-kv/starling/bench/contestant"
	"github.com/starling-kv/starling/bench/harness"
)

// Figures are the measurements of one contestant.
type Figures struct {
	LoadS                   float64 `json:"load_s"`
	CommitP50MS             float64 `json:"commit_p50_ms"`
	CommitP99MS             float64 `json:"commit_p99_ms"`
	GetNS                   float64 `json:"get_ns"`
	ProofUS                 float64 `json:"proof_us"`
	ExportS                 float64 `json:"export_s"`
	ImportS                 float64 `json:"import_s"`
	BytesPerKey             float64 `json:"bytes_per_key"`
	CommitP99DuringExportMS float64 `json:"commit_p99_during_export_ms"`

	// Details. GetManyNS is the time per key of GetMany.
	GetManyNS float64 `json:"get_many_ns,omitempty"`
	// GetNS and BytesPerKey with a hash index.
	IndexGetNS               float64 `json:"index_get_ns,omitempty"`
	IndexBytesPerKey         float64 `json:"index_bytes_per_key,omitempty"`
	CommitP50DuringExportMS  float64 `json:"commit_p50_during_export_ms"`
	CommitOneCoreP50MS       float64 `json:"commit_one_core_p50_ms"`
	Versions                 int     `json:"versions"`           // versions without an export
	StreamMBPerS             float64 `json:"export_rate_mb_s"`   // of the concurrent export
	ProofBytes               int     `json:"proof_bytes"`        // on average
	HeapBytesPerKey          float64 `json:"heap_bytes_per_key"` // in the Go heap
	BytesPerKeyAfterVersions float64 `json:"bytes_per_key_after_versions"`
	HugeShare                float64 `json:"huge_share"`         // of the memory after the versions
	FileBytesPerKey          float64 `json:"file_bytes_per_key"` // resident pages of files
	FileBytesPerKeyAfter     float64 `json:"file_bytes_per_key_after_versions"`
	ExportBytes              int     `json:"export_bytes"` // leaf records
	FinalKeys                int     `json:"final_keys"`
	FinalRoot                string  `json:"final_root"`
}

// Result is the outcome of a run. Peers that did not take part are missing.
type Result struct {
	Keys     int      `json:"keys"`
	Starling *Figures `json:"starling"`
	Index    *Figures `json:"starling_index,omitempty"` // with a hash index
	IAVL     *Figures `json:"iavl,omitempty"`
	Memiavl  *Figures `json:"memiavl,omitempty"`
	Mapped   *Figures `json:"memiavl_mapped,omitempty"` // on a mapped snapshot of the loaded tree
	Floor    Floor    `json:"floor"`

	Batch      int              `json:"batch"`
	Versions   int              `json:"versions"`
	Seed       uint64           `json:"seed"`
	ExportRate float64          `json:"export_rate_mb_s"` // as requested
	Machine    harness.Machine  `json:"machine"`
	Targets    []harness.Target `json:"targets"`
}

// figures returns the figures of a contestant, or nil if it did not take part.
func (r *Result) figures(name string) *Figures {
	switch name {
	case "starling":
		return r.Starling
	case contestant.Indexed:
		return r.Index
	case "memiavl":
		return r.Memiavl
	case "iavl":
		return r.IAVL
	case contestant.Mapped:
		return r.Mapped
	}
	return nil
}

func (r *Result) set(name string, f *Figures) {
	switch name {
	case "starling":
		r.Starling = f
	case contestant.Indexed:
		r.Index = f
	case "memiavl":
		r.Memiavl = f
	case "iavl":
		r.IAVL = f
	case contestant.Mapped:
		r.Mapped = f
	}
}

// peers returns the contestants other than Starling that took part, in the order of the table.
func (r *Result) peers() (names []string) {
	for _, name := range []string{contestant.Indexed, "memiavl", contestant.Mapped, "iavl"} {
		if r.figures(name) != nil {
			names = append(names, name)
		}
	}
	return names
}
