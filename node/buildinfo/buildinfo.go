// Package buildinfo describes this program: its version and commit, its build, and the app versions
// and on-disk formats that it supports. The linker sets Version and Commit in releases.
package buildinfo

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/app/evm"
	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/storage"
	"github.com/starling-kv/starling/storage/blocks"
)

// Version is set by the linker (see Makefile). If it is empty, the version comes from the module's
// build information.
var Version string

// Commit is set by the linker in releases (scripts/release.sh). If it is empty, the commit is the
// one recorded by `go build`.
var Commit string

// RehearsedAppVersion is for rehearsing an upgrade on a test network. The linker sets it:
//
//	go build -ldflags "-X github.com/starling-kv/starling/node/buildinfo.RehearsedAppVersion=3" ./cmd/starlingd
//
// The program then executes app versions up to this one: versions that do not exist yet with the
// rules of the newest existing one, or, like an old program, not even all that exist. Never use
// such a program in production. `starlingd version --long` shows it.
var RehearsedAppVersion string

// executable is the newest app version that this build executes.
var executable = app.NewestVersion(evm.New() != nil)

// NewestAppVersion returns the newest app version that this program executes. It returns an error
// if RehearsedAppVersion is invalid.
func NewestAppVersion() (uint64, error) {
	if RehearsedAppVersion == "" {
		return executable, nil
	}
	rehearsed, err := strconv.ParseUint(RehearsedAppVersion, 10, 32)
	if err != nil || rehearsed < app.GenesisVersion {
		return 0, fmt.Errorf("this program was built with RehearsedAppVersion=%q, which must be a number from %d up", RehearsedAppVersion, app.GenesisVersion)
	}
	if rehearsed > executable && executable < app.NewestVersion(true) {
		return 0, fmt.Errorf("this program was built with RehearsedAppVersion=%q and with the tag noevm: without it, programs can be executed", RehearsedAppVersion)
	}
	return rehearsed, nil
}

// Versions are the versions of this program and of its main dependencies.
type Versions struct {
	Starling string `json:"starling"`
	CometBFT string `json:"cometbft"`
	Go       string `json:"go"`
}

// Read reads the versions from the binary. CometBFT's own constant is not used, because it lags
// behind (v0.40.0 calls itself 0.39.0).
func Read() Versions {
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

// LongVersions are all properties in which builds can differ.
type LongVersions struct {
	Versions
	Commit   string `json:"commit"` // "unknown" if the sources have no history
	Pebble   string `json:"pebble"`
	Platform string `json:"platform"`
	Static   bool   `json:"static"` // built without cgo
	// The app versions that this program executes.
	OldestAppVersion uint64 `json:"oldest_app_version"`
	NewestAppVersion uint64 `json:"newest_app_version"`
	// Rehearsal: NewestAppVersion is that of RehearsedAppVersion.
	Rehearsal bool `json:"rehearsal"`
	// The formats that this program reads and writes.
	StateFormat    int    `json:"state_format"`
	BlocksFormat   int    `json:"blocks_format"`
	DatabaseFormat uint64 `json:"database_format"` // of Pebble
	SnapshotFormat int    `json:"snapshot_format"`
}

// ReadLong reads the properties of this binary. Its errors are those of NewestAppVersion.
func ReadLong() (LongVersions, error) {
	v := LongVersions{
		Versions: Read(), Commit: Commit, Platform: runtime.GOOS + "/" + runtime.GOARCH,
		OldestAppVersion: app.GenesisVersion, StateFormat: storage.FormatVersion, BlocksFormat: blocks.FormatVersion,
		DatabaseFormat: storage.DatabaseFormat, SnapshotFormat: statesync.Format,
	}
	var err error
	if v.NewestAppVersion, err = NewestAppVersion(); err != nil {
		return v, err
	}
	v.Rehearsal = v.NewestAppVersion != executable
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

// IsTooOld reports whether an error means that a newer program is needed: this one does not support
// the chain's app version or the format of the data on disk.
func IsTooOld(err error) bool {
	return errors.As(err, new(*app.UpgradeError)) || errors.Is(err, storage.ErrNewerFormat)
}
