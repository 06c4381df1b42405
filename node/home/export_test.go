package home

import (
	sm "github.com/cometbft/cometbft/state"
	"github.com/cometbft/cometbft/store"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/statesync/archive"
)

// Internals of the package for its tests, which run nodes and are therefore in an external package.

type Offline = offline

var (
	OpenOffline  = openOffline
	StateOptions = stateOptions
)

func (d *offline) Close() error                                 { return d.close() }
func (d *offline) BlockStore() *store.BlockStore                { return d.blocks }
func (d *offline) CometStates() sm.Store                        { return d.comet }
func (d *offline) PlanRollback(hard bool) (RollbackPlan, error) { return d.planRollback(hard) }
func (d *offline) RollbackState(plan RollbackPlan) error        { return d.rollbackState(plan) }

func (d *offline) AppHashAfter(height int64) (hash []byte, header int64, err error) {
	return d.appHashAfter(height)
}

// SourceOf returns a version as a snapshot.
func SourceOf(v *avlstar.Version, height int64) archive.Source { return versionSource{v, height} }

// Reached sets a function called between two steps of an import.
func Reached(o *ImportOptions, f func(step string)) { o.reached = f }
