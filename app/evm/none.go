//go:build noevm

package evm

import "github.com/starling-kv/starling/app/program"

// New returns nil: this build has no engine.
func New() program.Engine { return nil }
