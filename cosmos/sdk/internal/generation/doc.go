// Package generation declares one name for each type and function that differs in package or
// parameters between SDK v0.55 and v0.53. The other packages of this module use these names, and so
// compile with both versions. Signatures follow v0.55.
//
//	serve, simd, and their tests ──▶ generation ─┬─ v055.go: log/v2, store/v2
//	                                             └─ v053.go: log, store       (build tag sdk053)
//
// The go.mod of this module requires SDK v0.55, and sdk053.mod requires v0.53.
package generation

import (
	dbm "github.com/cosmos/cosmos-db"
	servertypes "github.com/cosmos/cosmos-sdk/server/types"
)

// NewApp creates an application.
type NewApp = func(Logger, dbm.DB, servertypes.AppOptions) servertypes.Application
