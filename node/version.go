package node

import "runtime/debug"

// Version is set by the linker (see Makefile); else it comes from the module's build information.
var Version string

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
	for _, dep := range info.Deps {
		if dep.Path == "github.com/cometbft/cometbft" {
			v.CometBFT = dep.Version
			if dep.Replace != nil {
				v.CometBFT = dep.Replace.Version
			}
		}
	}
	return v
}
