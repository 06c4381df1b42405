package node

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// Version is set by the linker (see Makefile); else it comes from the module's build information.
var Version string

// Commit is set by the linker in releases (scripts/release.sh); else it comes from what `go build` notes of the repository.
var Commit string

// RehearsedAppVersion is for rehearsals of an upgrade on a test network: set by the linker, as in
//
//	go build -ldflags "-X github.com/starling-kv/starling/node.RehearsedAppVersion=2" ./cmd/starlingd
//
// it makes a program that knows app versions up to this one, of which those that do not exist yet have the rules of the newest that does.
// A program that others rely on is never built so: `starlingd version --long` shows it.
var RehearsedAppVersion string

// newestAppVersion is the newest app version that this program executes.
func newestAppVersion() (uint64, error) {
	if RehearsedAppVersion == "" {
		return app.NewestVersion(), nil
	}
	rehearsed, err := strconv.ParseUint(RehearsedAppVersion, 10, 32)
	if err != nil || rehearsed < app.NewestVersion() {
		return 0, fmt.Errorf("this program was built with RehearsedAppVersion=%q, which must be a number from %d up", RehearsedAppVersion, app.NewestVersion())
	}
	return rehearsed, nil
}

// Versions names what is built into this program.
type Versions struct {
	Starling string `json:"starling"`
	CometBFT string `json:"cometbft"`
	Go       string `json:"go"`
}

// BuildVersions reads them from the binary: CometBFT's own constant lags behind (v0.40.0 calls itself 0.39.0).
func BuildVersions() Versions {
	v := Versions{Starling: Version, CometBFT: "unknown", Go: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Go = info.GoVersion
	if v.Starling == "" {
		v.Starling = info.Main.Version
	}
	v.CometBFT = dependency(info, "github.com/cometbft/cometbft")
	return v
}

func dependency(info *debug.BuildInfo, path string) string {
	for _, dep := range info.Deps {
		switch {
		case dep.Path != path:
		case dep.Replace != nil:
			return dep.Replace.Version
		default:
			return dep.Version
		}
	}
	return "unknown"
}

// LongVersions is all that tells one program from another.
type LongVersions struct {
	Versions
	Commit   string `json:"commit"` // "unknown" where the sources came without their history
	Pebble   string `json:"pebble"`
	Platform string `json:"platform"`
	Static   bool   `json:"static"` // built without cgo
	// The app versions that it executes.
	OldestAppVersion uint64 `json:"oldest_app_version"`
	NewestAppVersion uint64 `json:"newest_app_version"`
	Rehearsal        bool   `json:"rehearsal"` // the newest one is made up, see RehearsedAppVersion
	// The formats that it reads and writes.
	StateFormat    int    `json:"state_format"`
	BlocksFormat   int    `json:"blocks_format"`
	DatabaseFormat uint64 `json:"database_format"` // of Pebble
	SnapshotFormat int    `json:"snapshot_format"`
}

// BuildLongVersions reads them from the binary.
func BuildLongVersions() (LongVersions, error) {
	v := LongVersions{
		Versions: BuildVersions(), Commit: Commit, Platform: runtime.GOOS + "/" + runtime.GOARCH,
		OldestAppVersion: app.GenesisVersion, StateFormat: storage.FormatVersion, BlocksFormat: blocks.FormatVersion,
		DatabaseFormat: storage.DatabaseFormat, SnapshotFormat: statesync.Format,
	}
	var err error
	if v.NewestAppVersion, err = newestAppVersion(); err != nil {
		return v, err
	}
	v.Rehearsal = v.NewestAppVersion > app.NewestVersion()
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	v.Pebble = dependency(info, "github.com/cockroachdb/pebble/v2")
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = cmp.Or(v.Commit, s.Value)
		case "CGO_ENABLED":
			v.Static = s.Value == "0"
		}
	}
	v.Commit = cmp.Or(v.Commit, "unknown")
	return v, nil
}
